"""What a run reads from standard input: what `ullage` was given, in every run from where it began."""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Final

from ullage.base.foreign_files import open_regular

_OURS: Final = Path("/dev/fd/0")
_ASKING: Final = frozenset(("-", "/dev/stdin"))
"""Words of a command that say that it reads standard input."""
_lock: Final = Lock()
_piped: list[bytes] = []
"""The content of the pipe, once it was read: that can be done once, and a prediction may take several runs."""


def standard_input(words: Sequence[str]) -> BinaryIO | None:
    """Open the standard input of a run: a file that ours is, or what a pipe brings to a command that has "-".

    Returns:
        None: it is to be empty. A terminal is not asked, and a pipe that the command does not name is not waited for.
    """
    with suppress(OSError):
        kind = os.fstat(0).st_mode
        if stat.S_ISREG(kind):
            file = open_regular(_OURS)
            file.seek(os.lseek(0, 0, os.SEEK_CUR))
            return file
        if (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)) and not _ASKING.isdisjoint(words):
            again = os.fdopen(os.memfd_create("ullage-input", os.MFD_CLOEXEC), "w+b")
            again.write(_all_of_the_pipe())
            again.seek(0)
            return again
    return None


def _all_of_the_pipe() -> bytes:
    with _lock:
        if not _piped:
            with open_regular(_OURS) as pipe:
                _piped.append(pipe.read())
        return _piped[0]
