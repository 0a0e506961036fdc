"""A process that removes the folder of what was made up, however the run ends: nobody who is killed can do it.

Run with FOLDER as its argument, and a pipe as its input that only the process has which started it: when that is
closed, the run is over.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ullage.base.own_files import OwnFolder

_TRIES: Final = 50
_PAUSE_SECONDS: Final = 0.1


def main() -> None:
    """Wait for the end of the run, and remove the folder with all that is in it."""
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
