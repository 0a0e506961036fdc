"""Create a folder for generated files before the script starts, and remove it after the run."""

# A separate process, the keeper, removes the folder however the run ends, even if the run is killed. It runs `main`
# with the folder as its argument. Its standard input is a pipe whose other end only the starting process has: when the
# pipe is closed, the run is over.

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from ullage.base.child_process import python_command
from ullage.base.own_files import OwnFolder
from ullage.predicting.made_up.choice import MadeUpChoice

_WAIT_SECONDS: Final = 20
_TRIES: Final = 50
_PAUSE_SECONDS: Final = 0.1


@contextmanager
def with_folder(choice: MadeUpChoice) -> Iterator[MadeUpChoice]:
    """Create a folder for generated files, if any may be generated, and yield the options with this folder.

    Raises:
        SharedFolderError: other users can write to the folder for temporary files.
        OSError: the folder cannot be created.
    """
    if not choice.is_asked:
        yield choice
        return
    with OwnFolder.make(Path(tempfile.gettempdir()) / f"ullage-made-up-{os.urandom(8).hex()}") as folder:
        keeper = subprocess.Popen(
            [*python_command(__name__, with_flags=False), str(folder.path)],
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


def main() -> None:
    """Wait until the run ends, and remove the folder of generated files."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.chdir("/")
    folder = OwnFolder.open(Path(sys.argv[1]))
    while os.read(0, 4096):
        pass
    for _ in range(_TRIES):  # processes that are being killed may still write
        with suppress(OSError):
            folder.remove_tree()
            return
        time.sleep(_PAUSE_SECONDS)
