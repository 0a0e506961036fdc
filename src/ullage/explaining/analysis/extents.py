"""The memory that an allocator held from the driver over a run: segments, and the mapped pages of expandable ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ullage.explaining.analysis.recording import Recording
from ullage.recorded.allocator.replay import Call, Calls
from ullage.recorded.program import UNMAPPED_KEY, Op, StartSegment
from ullage.recorded.rebuild.ranges import Ranges
from ullage.recorded.settings import SMALL_SEGMENT_BYTES
from ullage.report.blocks import SegmentColumns


@dataclass(frozen=True, slots=True)
class _Extent:
    """What one piece of memory is: a segment, or pages that were mapped at once and are still there."""

    born: int
    kind: str
    is_page: bool


@dataclass(frozen=True, slots=True)
class _ExtentLife:
    """A piece of memory from when it was taken to when it was given back (-1: never)."""

    address: int
    size_bytes: int
    extent: _Extent
    gone: int


def segments_of(recording: Recording, calls: Calls) -> SegmentColumns:
    """Return every segment with its life in moments; pages of an expandable segment are pieces of their own.

    Args:
        recording: the run.
        calls: what its replay asked of the driver.
    """
    moments = len(recording.program) + 1
    lives = list(_lives(recording, calls))
    kinds = sorted({life.extent.kind for life in lives}, key=lambda kind: ("pool" in kind, kind))
    return SegmentColumns(
        born=_column(life.extent.born for life in lives),
        life=_column((life.gone if life.gone >= 0 else moments) - life.extent.born for life in lives),
        address=_column(life.address for life in lives),
        size_bytes=_column(life.size_bytes for life in lives),
        is_page=_column(life.extent.is_page for life in lives),
        kind=_column(kinds.index(life.extent.kind) for life in lives),
        kinds=tuple(kinds),
    )


def _column(values: Iterator[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.fromiter(values, np.int64)


def _lives(recording: Recording, calls: Calls) -> Iterator[_ExtentLife]:
    """Yield the pieces of memory, in no order: those that were given back, then those that never were."""
    held: Ranges[_Extent] = Ranges()
    naming = _Naming(recording)
    for segment in recording.program.start:
        kind = naming.kind(segment.is_small, segment.stream, segment.pool)
        for address, size in _mapped(segment):
            held.put(address, address + size, _Extent(0, kind, segment.is_expandable))
    columns = (calls.op, calls.call, calls.size, calls.count, calls.address)
    for op, call, size, count, address in zip(*(column.tolist() for column in columns), strict=True):
        end = address + size * (count or 1)
        if call in (Call.MALLOC, Call.MAP):
            held.put(address, end, _Extent(op + 1, naming.kind_of(op, size), call == Call.MAP))
        elif call in (Call.FREE, Call.UNMAP):
            yield from (_ExtentLife(low, high - low, extent, op + 1) for low, high, extent in held.cut(address, end))
    yield from (_ExtentLife(low, high - low, extent, -1) for low, high, extent in held)


def _mapped(segment: StartSegment) -> Iterator[tuple[int, int]]:
    """Yield the address and the bytes of each stretch of a segment that has memory."""
    at = segment.address
    for is_mapped, blocks in groupby(segment.blocks, key=lambda block: block[2] != UNMAPPED_KEY):
        size = sum(size for size, *_ in blocks)
        if is_mapped:
            yield at, size
        at += size


class _Naming:
    """Names of what segments are told apart by: the size of their blocks, and pool and stream where it is not 0."""

    def __init__(self, recording: Recording) -> None:
        self._program = recording.program
        self._pools = recording.pool_of_ops()

    def kind_of(self, op: int, size: int) -> str:
        """Name a segment or a page of this size that an operation took."""
        is_request = self._program.op[op] == Op.ALLOCATE
        pool = int(self._pools[op]) if is_request else 0
        return self.kind(size == SMALL_SEGMENT_BYTES, int(self._program.stream[op]) if is_request else 0, pool)

    def kind(self, is_small: bool, stream: int, pool: int) -> str:  # noqa: FBT001  one of three that tell them apart
        name = "small blocks (up to 1 MiB)" if is_small else "large blocks"
        name += f", private pool {pool}" if pool else ""
        return name + (f", stream {stream:#x}" if stream else "")
