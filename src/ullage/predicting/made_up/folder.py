"""The folder of what has to be a file: made before the script starts, and removed when the run is over."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from ullage.base.child_process import python_command
from ullage.base.own_files import OwnFolder
from ullage.predicting.made_up.choice import MadeUpChoice

_WAIT_SECONDS: Final = 20


@contextmanager
def with_folder(choice: MadeUpChoice) -> Iterator[MadeUpChoice]:
    """Yield the choice with a folder, if anything is to be made up.

    Raises:
        SharedFolderError: others can write to the folder of temporary files.
        OSError: it cannot be made.
    """
    if not choice.is_asked:
        yield choice
        return
    with OwnFolder.make(Path(tempfile.gettempdir()) / f"ullage-made-up-{os.urandom(8).hex()}") as folder:
        keeper = subprocess.Popen(
            [*python_command("ullage.predicting.made_up.keeper", with_flags=False), str(folder.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield replace(choice, folder=str(folder.path))
        finally:
            assert keeper.stdin is not None
            keeper.stdin.close()
            try:
                keeper.wait(_WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()
