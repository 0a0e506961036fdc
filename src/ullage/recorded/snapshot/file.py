"""The bytes of a snapshot's file: unzipped where needed, refused where they are plainly another format."""

import io
import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final

from ullage.base.errors import UsageError
from ullage.base.foreign_files import open_regular
from ullage.base.packed import DAMAGED, GZIP, ZIP, unpacked
from ullage.base.units import text_of_bytes
from ullage.recorded.snapshot.form import as_pickle, other_form

_PIECE_BYTES: Final = 1 << 20
_PACKED: Final = (GZIP, ZIP)
_MOST_LAYERS: Final = 2
"""A zip archive of a file that was gzipped before is found; nobody packs a third time."""
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
        for _ in range(_MOST_LAYERS):
            if not data.startswith(_PACKED):
                break
            with unpacked(io.BufferedReader(io.BytesIO(data)), str(path)) as stream:
                data = _pieces_of(stream, most, f"{path} unzips to")
    except SnapshotError:
        raise
    except UsageError as error:
        raise SnapshotError(str(error)) from None
    except (OSError, *DAMAGED) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, EOFError):
            reason = "it is cut off: the end of its gzip is missing; copy it again"
        raise SnapshotError(f"{path} cannot be read: {reason}") from None
    if not data:
        raise SnapshotError(f"{path} is empty; expected what torch.cuda.memory._dump_snapshot() writes")
    if other := other_form(data):
        raise SnapshotError(f"{path} is not a snapshot: {other}")
    return as_pickle(data)


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


def _pieces_of(stream: IO[bytes], most: int, what: str) -> bytes:
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
