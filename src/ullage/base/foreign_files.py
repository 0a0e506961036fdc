"""Files that somebody else may have made: only regular ones are read, so that nothing waits for a pipe or a device.

Of a text of JSON it is known beforehand whether it would become many times its own size in memory.
"""

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO, Final

_OWN_DESCRIPTOR: Final = re.compile(r"/dev/(?:stdin|fd/\d+)|/proc/self/fd/\d+")
"""Paths of what this process has open already, such as a shell's `<(zcat log.gz)`: whoever started it meant that."""
_KINDS: Final = (
    (stat.S_ISFIFO, "it is a pipe with a name, which is not waited for"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
    (stat.S_ISDIR, "it is a folder"),
)
_LIST_BYTES: Final = 8
_DICTIONARY_BYTES: Final = 24
"""The fewest bytes of a text for each of its lists and dictionaries: a snapshot and a notebook have far more."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or what this process has open already under a number, to read.

    Raises:
        OSError: it is something else, or cannot be opened.
    """
    is_ours = _OWN_DESCRIPTOR.fullmatch(str(path)) is not None
    _check(path, os.stat(path), is_ours=is_ours)  # first: to open a device may do something
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | (0 if is_ours else os.O_NONBLOCK)
    descriptor = os.open(path, flags)
    try:
        _check(path, os.fstat(descriptor), is_ours=is_ours)  # again: what has the name may have changed
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")


def read_regular(path: Path, *, most_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it is something else, larger than `most_bytes`, or cannot be read.
    """
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(path))
    return content


def _check(path: Path, found: os.stat_result, *, is_ours: bool) -> None:
    what = next((text for is_kind, text in _KINDS if is_kind(found.st_mode)), None)
    is_stream = stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode)
    if what is not None and not (is_ours and is_stream):
        raise OSError(errno.EINVAL, f"{what}; expected a regular file", str(path))


def is_far_larger_in_memory(text: bytes | str) -> bool:
    """Return whether a text of JSON has more lists and dictionaries for its size than any snapshot or notebook.

    Python takes 64 bytes for `[],` and 192 for `{"a":1},`.
    """
    lists, dictionaries = (
        (text.count(b"["), text.count(b"{")) if isinstance(text, bytes) else (text.count("["), text.count("{"))
    )
    return lists * _LIST_BYTES + dictionaries * _DICTIONARY_BYTES > len(text) + (1 << 20)
