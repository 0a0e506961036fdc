"""A large snapshot that `ullage explain` is given: read while the command line is loading, into memory that is kept."""

import ctypes
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_LARGE_BYTES: Final = 1 << 25
_PICKLE: Final = b"\x80"

# glibc's malloc.h: mallopt(3)
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 1 << 30


def read_ahead_of(words: Sequence[str]) -> bool:
    """Begin to read the one large snapshot among the words of a command line; tell whether there is a large file.

    What the words mean is not known yet: a file that is not asked for is read for nothing, and what is wrong with one
    is said when it is asked for.
    """
    paths = [path for word in words if not word.startswith("-") and is_large(path := Path(word))]
    if not paths:
        return False
    _keep_freed_memory()
    if len(paths) == 1 and _begins_as_pickle(paths[0]):
        from ullage.recorded.snapshot.reading import read_ahead

        read_ahead(paths[0])
    return True


def end_without_freeing(end: SystemExit) -> None:
    """End this process as it is about to, without freeing first, object by object, what the kernel frees at once.

    Returns where its output cannot be written, which Python's own end tells.
    """
    if not isinstance(end.code, int | None):
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return
    os._exit(end.code or 0)


def is_large(path: Path) -> bool:
    """Tell whether a path is that of a file of 32 MiB or more, for which it is worth while."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size >= _LARGE_BYTES


def _begins_as_pickle(path: Path) -> bool:
    from ullage.base.foreign_files import open_regular

    try:
        with open_regular(path) as file:
            return file.read(len(_PICKLE)) == _PICKLE
    except OSError:
        return False


def _keep_freed_memory() -> None:
    """Have the C library keep what is freed, for a command that reads one large file and ends.

    The kernel zeroes memory that is given back and asked for again, which takes time. Of a small file more would be
    held for nothing. A C library without `mallopt` does as it always does.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
