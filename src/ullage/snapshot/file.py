"""The bytes of a snapshot's file: unzipped where needed, refused where they are plainly another format."""

import gzip
import io
import os
import resource
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final

from ullage._errors import UsageError
from ullage._foreign_files import open_regular
from ullage._units import text_of_bytes

_GZIP: Final = b"\x1f\x8b"
_PIECE_BYTES: Final = 1 << 20
_UNPACK: Final = "unpack it, and give the snapshot that is in it"
_DUMP: Final = "expected what torch.cuda.memory._dump_snapshot() writes"
_OTHERS: Final = (
    (0, b"PK\x03\x04", "a zip archive", _UNPACK),
    (0, b"PK\x05\x06", "an empty zip archive", _DUMP),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "packed by zstd", _UNPACK),
    (0, b"\xfd7zXZ\x00", "packed by xz", _UNPACK),
    (0, b"BZh", "packed by bzip2", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (0, b"version https://git-lfs", "a pointer of Git LFS, not the file itself", "fetch it: git lfs pull"),
    (0, b"SQLite format 3\x00", "a database of SQLite", _DUMP),
    (0, b"<", "a page, or other text with tags", _DUMP),
    (0, b'{"', "JSON", _DUMP),
    (0, b"{\n", "JSON", _DUMP),
)
"""Signatures of other formats: (offset, signature, name of the format, what to do)."""
_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files that hold a container's memory limit, of cgroup v2 and v1."""


class SnapshotError(UsageError):
    """Report a file that is not a snapshot, or that is refused."""


def read_file(path: Path) -> bytes:
    """Return the content of a file, unzipped.

    Raises:
        SnapshotError: it cannot be read, is damaged, or is plainly no snapshot.
    """
    try:
        most = memory_bytes() // 2
        data = _content_of(path, most)
        if data.startswith(_GZIP):
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
                data = _pieces_of(stream, most, f"{path} unzips to")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, EOFError):
            reason = "it is cut off: the end of its gzip is missing; copy it again"
        raise SnapshotError(f"{path} cannot be read: {reason}") from None
    if not data:
        raise SnapshotError(f"{path} is empty; {_DUMP}")
    for place, mark, what, to_do in _OTHERS:
        if data.startswith(mark, place):
            raise SnapshotError(f"{path} is not a snapshot: it is {what}; {to_do}")
    return data


def memory_bytes(limits: Iterable[Path] = _LIMITS) -> int:
    """Return the memory that this process may use: the machine's, or a container's or `ulimit -v`'s limit."""
    known = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        known.append(space)
    for limit in limits:
        try:
            known.append(int(limit.read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(known)


def _content_of(path: Path, most: int) -> bytes:
    """Read a file, or a pipe that this process was given."""
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most:
            raise _too_large(f"{path} is", most)
        return stream.read(size) if size else _pieces_of(stream, most, f"{path} is")


def _pieces_of(stream: BinaryIO | gzip.GzipFile, most: int, what: str) -> bytes:
    """Read a stream of unknown size in pieces; a small gzip file can hold a thousand times its own size."""
    kept = io.BytesIO()
    while piece := stream.read(_PIECE_BYTES):
        kept.write(piece)
        if kept.tell() > most:
            raise _too_large(what, most)
    return kept.getvalue()


def _too_large(what: str, most: int) -> SnapshotError:
    half = f"{text_of_bytes(most)}, half of the memory this process may use"
    return SnapshotError(f"{what} more than {half}; read it where there is more")
