"""Memory that this process frees, kept for what it asks for next."""

import ctypes
from pathlib import Path
from typing import Final

# glibc's malloc.h: mallopt(3)
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 1 << 30
_LARGE_FILE_BYTES: Final = 1 << 25


def keep_freed_memory(file: Path) -> None:
    """Have the C library keep what is freed, for a command that reads one large file and ends.

    The kernel zeroes memory that is given back and asked for again, which takes time. Of a small file more would be
    held for nothing. A C library without `mallopt` does as it always does.
    """
    if not file.exists() or file.stat().st_size < _LARGE_FILE_BYTES:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
