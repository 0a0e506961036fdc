"""Read files that other users may have created.

Only regular files are opened, because a pipe or a device could block. JSON text is checked before it is parsed, because
the parsed objects can need far more memory than the text.
"""

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO, Final

# The path of a file that this process has open. A shell passes such a path for `<(zcat log.gz)`; it may be a pipe.
_OWN_DESCRIPTOR: Final = re.compile(r"/dev/(?:stdin|fd/\d+)|/proc/self/fd/\d+")
_KINDS: Final = (
    (stat.S_ISFIFO, "it is a named pipe, and reading it could block"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
    (stat.S_ISDIR, "it is a folder"),
)
_LIST_BYTES: Final = 8
# Bytes of JSON text for each list or dictionary in it. Snapshots and notebooks have far more.
_DICTIONARY_BYTES: Final = 24


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or a file that this process already has open (/dev/fd/N), for reading.

    Raises:
        OSError: the path leads to a pipe, a socket, a device or a folder, or the file cannot be opened.
    """
    is_ours = _OWN_DESCRIPTOR.fullmatch(str(path)) is not None
    _check(path, os.stat(path), is_ours=is_ours)  # checked before opening, because opening a device may have an effect
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | (0 if is_ours else os.O_NONBLOCK)
    descriptor = os.open(path, flags)
    try:
        _check(
            path, os.fstat(descriptor), is_ours=is_ours
        )  # checked again, because the path may lead to another file now
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")


def read_regular(path: Path, *, most_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: the path does not lead to a regular file, or the file is larger than `most_bytes` or cannot be read.
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
    """Return whether parsed JSON would need far more memory than its text.

    Python needs 64 bytes for the text `[],` and 192 bytes for the text `{"a":1},`.
    """
    lists, dictionaries = (
        (text.count(b"["), text.count(b"{")) if isinstance(text, bytes) else (text.count("["), text.count("{"))
    )
    return lists * _LIST_BYTES + dictionaries * _DICTIONARY_BYTES > len(text) + (1 << 20)
