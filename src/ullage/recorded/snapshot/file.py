"""Reads a snapshot file, which may be compressed: a pickle, JSON, or a page of PyTorch's memory viewer."""

import base64
import binascii
import io
import json
import os
import pickle
import re
import resource
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, Final

from ullage.base.errors import UsageError
from ullage.base.foreign_files import is_far_larger_in_memory, open_regular
from ullage.base.packed import GZIP, ZIP, unpacked
from ullage.base.public import public
from ullage.base.units import text_of_bytes

_PAGE: Final = re.compile(rb"\s{0,40}<!DOCTYPE html>[^\0]{0,1000}MemoryViz\.js")
_IN_PAGE: Final = b'"base64": "'
_JSON: Final = re.compile(
    rb'\s{0,40}(?:\{\s{0,40}"(?:segments|device_traces|allocator_settings|external_annotations)"'
    rb'|\[\s{0,40}\{\s{0,40}"(?:device|address|total_size|blocks)")'
)
_FRAME: Final = {"name", "filename", "line"}
_DUMP: Final = "expected a file written by torch.cuda.memory._dump_snapshot()"
_UNPACK: Final = "unpack it, and give the snapshot that it contains"
_RECORD: Final = (
    "it records which operations ran, but not which memory was in use; record that with "
    "torch.cuda.memory._record_memory_history() and _dump_snapshot()"
)
# Patterns for the first bytes of files that are not snapshots. Each has the name of the format, and what the user can
# do with such a file.
_OTHERS: Final = (
    (re.compile(rb"PK\x05\x06"), "an empty zip archive", _DUMP),
    (re.compile(rb".{257}ustar", re.DOTALL), "a tar archive", _UNPACK),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "compressed by zstd", _UNPACK),
    (re.compile(rb"\xfd7zXZ\x00"), "compressed by xz", _UNPACK),
    (re.compile(rb"BZh"), "compressed by bzip2", _UNPACK),
    (re.compile(rb"7z\xbc\xaf\x27\x1c"), "a 7z archive", _UNPACK),
    (re.compile(rb"version https://git-lfs"), "a Git LFS pointer, not the file itself", "fetch it: git lfs pull"),
    (re.compile(rb"SQLite format 3\x00"), "an SQLite database", _DUMP),
    (
        re.compile(rb"<html>\s{0,40}<head>.{0,200}<title>GPU Memory Timeline HTML</title>", re.DOTALL),
        "a picture of the profiler's memory timeline, without figures",
        "export the timeline to a path that ends in .json",
    ),
)
# Patterns for the first bytes of JSON files that are not snapshots but look like logs. Each has the name of the format,
# and what the user can do with such a file.
_OTHER_JSON: Final = (
    (re.compile(rb'\s{0,40}\{\s{0,40}"(?:schemaVersion|deviceProperties|traceEvents)"'), "a profiler's trace", _RECORD),
)
_TEXTS: Final = (
    (re.compile(rb"<"), "an HTML page or other text with tags", _DUMP),
    (re.compile(rb"\{[\"\n]"), "JSON", _DUMP),
)
_PIECE_BYTES: Final = 1 << 20
_PACKED: Final = (GZIP, ZIP)
# The largest number of layers of compression that are read. A zip archive of a gzipped file has two.
_MOST_LAYERS: Final = 2
# Files that contain the memory limit of a container, for cgroup v2 and v1.
_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def is_no_log(beginning: bytes) -> bool:
    """Return whether a text file is certainly not a log, but a snapshot or another known format."""
    forms = (_PAGE, _JSON, *(pattern for pattern, _, _ in (*_OTHERS, *_OTHER_JSON)))
    return any(pattern.match(beginning) for pattern in forms)


def is_archive(beginning: bytes) -> bool:
    """Return whether a file has a compression format that ullage cannot read."""
    return any(pattern.match(beginning) for pattern, _, to_do in _OTHERS if to_do == _UNPACK)


def other_form(data: bytes) -> str:
    """Return the format of a file that is not a memory snapshot, with advice for the user. Otherwise, return an empty
    text.
    """
    beginning = data[:4096]
    if _JSON.match(beginning) or _PAGE.match(beginning):
        return ""
    for pattern, what, to_do in (*_OTHERS, *_OTHER_JSON, *_TEXTS):
        if pattern.match(beginning):
            return f"it is {what}; {to_do}"
    return ""


# A pickle stores each frame once, but JSON repeats it for every block.
def _once() -> Callable[[dict[str, Any]], dict[str, Any]]:
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def frame(found: dict[str, Any]) -> dict[str, Any]:
        return known.setdefault(tuple(found.values()), found) if found.keys() == _FRAME else found

    return frame


def as_pickle(data: bytes) -> bytes:
    """Convert a memory snapshot from JSON or a memory viewer page to a pickle. Return other data unchanged.

    Raises:
        ValueError: the data is damaged. The text says how.
    """
    beginning = data[:4096]
    if _PAGE.match(beginning):
        begin = data.find(_IN_PAGE) + len(_IN_PAGE)
        end = data.find(b'"', begin)
        if begin < len(_IN_PAGE) or end < 0:
            raise ValueError(
                "the page of PyTorch's viewer contains no complete snapshot: the file is incomplete or was changed"
            )
        try:
            return base64.b64decode(data[begin:end], validate=True)
        except binascii.Error:
            raise ValueError("the page of PyTorch's viewer is damaged: copy it again") from None
    if _JSON.match(beginning):
        if is_far_larger_in_memory(data):
            raise ValueError("it would take many times its own size in memory, which is not the case for a snapshot")
        try:
            return pickle.dumps(json.loads(data, object_hook=_once()))
        except (ValueError, RecursionError) as error:
            where = f" after {error.pos:,} characters" if isinstance(error, json.JSONDecodeError) else ""
            raise ValueError(f"it is JSON that is damaged or incomplete{where}: copy it again") from None
    return data


@public
class SnapshotError(UsageError):
    """Raised for a file that is not a memory snapshot or that is not safe to read."""


def read_file(path: Path) -> bytes:
    """Return the content of a file, decompressed.

    Raises:
        SnapshotError: the file cannot be read, is damaged, or is certainly not a snapshot.
    """
    try:
        most = memory_bytes() // 2
        data = _content_of(path, most)
        for _ in range(_MOST_LAYERS):
            if not data.startswith(_PACKED):
                break
            with unpacked(io.BufferedReader(io.BytesIO(data)), str(path)) as stream:
                data = _pieces_of(stream, most, f"{path} decompresses to")
    except SnapshotError:
        raise
    except UsageError as error:
        raise SnapshotError(str(error)) from None
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror or error}") from None
    if not data:
        raise SnapshotError(f"{path} is empty; expected a file written by torch.cuda.memory._dump_snapshot()")
    if other := other_form(data):
        raise SnapshotError(f"{path} is not a snapshot: {other}")
    return as_pickle(data)


def memory_bytes(limits: Iterable[Path] = _LIMITS) -> int:
    """Return the bytes of memory that this process may use, considering the limits of the machine, container and
    `ulimit`.
    """
    known = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        known.append(space)
    for limit in limits:
        try:
            known.append(int(limit.read_text()))
        except (OSError, ValueError):  # The file does not exist, or contains "max".
            continue
    return min(known)


def _content_of(path: Path, most: int) -> bytes:
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most:
            raise _too_large(f"{path} is", most)
        return stream.read(size) if size else _pieces_of(stream, most, f"{path} is")


# The stream is read in pieces, because a small gzip file can contain a thousand times its own size.
def _pieces_of(stream: IO[bytes], most: int, what: str) -> bytes:
    kept = io.BytesIO()
    while piece := stream.read(_PIECE_BYTES):
        kept.write(piece)
        if kept.tell() > most:
            raise _too_large(what, most)
    return kept.getvalue()


def _too_large(what: str, most: int) -> SnapshotError:
    half = f"{text_of_bytes(most)}, half of the memory this process may use"
    return SnapshotError(f"{what} more than {half}; read it on a machine with more memory")
