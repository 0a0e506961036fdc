"""The bytes of a snapshot's file: unzipped where they are zipped, refused where they are plainly something else."""

import gzip
import io
import os
import zlib
from pathlib import Path
from typing import Final

from ullage._errors import UsageError
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
"""Where a mark stands, the mark, what a file with it is, and what to do."""


class SnapshotError(UsageError):
    """Report a file that is no snapshot, or one that is refused."""


def read_file(path: Path) -> bytes:
    """Return what a file holds, unzipped.

    Raises:
        SnapshotError: it cannot be read, is damaged, or is plainly no snapshot.
    """
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP):
            data = _unzipped(data, path)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, EOFError):
            reason = "it is cut off: the end of its gzip is missing; copy it again"
        raise SnapshotError(f"{path} cannot be read: {reason}") from None
    if not data:
        raise SnapshotError(f"{path} is empty; {_DUMP}")
    for place, mark, what, to_do in _OTHERS:
        if data.startswith(mark, place):
            raise SnapshotError(f"{path} is no snapshot: it is {what}; {to_do}")
    return data


def _unzipped(data: bytes, path: Path) -> bytes:
    """Unzip as much as half of this machine's memory; a small file can hold a thousand times its size."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    kept = io.BytesIO()
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        while piece := stream.read(_PIECE_BYTES):
            kept.write(piece)
            if kept.tell() > most:
                raise SnapshotError(
                    f"{path} unzips to more than {text_of_bytes(most)}, half of this machine's memory; "
                    "use one with more"
                )
    return kept.getvalue()
