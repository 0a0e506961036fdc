"""The memory that an allocator held from the driver over a run: segments, and the mapped pages of expandable ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np

from ullage._units import MIB
from ullage.allocator.replay import Call, Calls
from ullage.analysis.recording import Recording
from ullage.program import UNMAPPED_KEY, Op, StartSegment
from ullage.report.blocks import SegmentColumns

_SMALL_BYTES: Final = 2 * MIB


@dataclass(slots=True)
class _Extent:
    """One piece of memory: a segment, or pages that were mapped at once and are still there."""

    born: int
    address: int
    size_bytes: int
    kind: str
    is_page: bool = False
    gone: int = -1


def segments_of(recording: Recording, calls: Calls) -> SegmentColumns:
    """Return every segment with its life in moments; pages of an expandable segment are pieces of their own.

    Args:
        recording: the run.
        calls: what its replay asked of the driver.
    """
    moments = len(recording.program) + 1
    extents = list(_extents(recording, calls))
    kinds = sorted({extent.kind for extent in extents}, key=lambda kind: ("pool" in kind, kind))
    return SegmentColumns(
        born=_column(extent.born for extent in extents),
        life=_column((extent.gone if extent.gone >= 0 else moments) - extent.born for extent in extents),
        address=_column(extent.address for extent in extents),
        size_bytes=_column(extent.size_bytes for extent in extents),
        is_page=_column(extent.is_page for extent in extents),
        kind=_column(kinds.index(extent.kind) for extent in extents),
        kinds=tuple(kinds),
    )


def _column(values: Iterator[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.fromiter(values, np.int64)


def _extents(recording: Recording, calls: Calls) -> Iterator[_Extent]:
    """Yield the pieces of memory, in no order: those that were given back, then those that never were."""
    held: dict[int, _Extent] = {}
    naming = _Naming(recording)
    for segment in recording.program.start:
        kind = naming.kind(segment.is_small, segment.stream, segment.pool)
        for address, size in _mapped(segment):
            held[address] = _Extent(0, address, size, kind, is_page=segment.is_expandable)
    columns = (calls.op, calls.call, calls.size, calls.count, calls.address)
    for op, call, size, count, address in zip(*(column.tolist() for column in columns), strict=True):
        if call == Call.MALLOC:
            held[address] = _Extent(op + 1, address, size, naming.kind_of(op, size))
        elif call == Call.FREE and address in held:
            yield _gone(held.pop(address), op + 1)
        elif call == Call.MAP:
            held[address] = _Extent(op + 1, address, size * count, naming.kind_of(op, size), is_page=True)
        elif call == Call.UNMAP:
            yield from _unmapped(held, address, size * count, op + 1)
    yield from held.values()


def _mapped(segment: StartSegment) -> Iterator[tuple[int, int]]:
    """Yield the address and the bytes of each stretch of a segment that has memory."""
    at = segment.address
    for is_mapped, blocks in groupby(segment.blocks, key=lambda block: block[2] != UNMAPPED_KEY):
        size = sum(size for size, *_ in blocks)
        if is_mapped:
            yield at, size
        at += size


def _gone(extent: _Extent, moment: int) -> _Extent:
    extent.gone = moment
    return extent


def _unmapped(held: dict[int, _Extent], address: int, size: int, moment: int) -> Iterator[_Extent]:
    """Yield what is unmapped of the pieces that lie in a range; what is left of them stays, in two pieces at most."""
    end = address + size
    for start in [start for start, extent in held.items() if start < end and address < start + extent.size_bytes]:
        extent = held.pop(start)
        last = start + extent.size_bytes
        low, high = max(start, address), min(last, end)
        for first, stop in ((start, low), (high, last)):
            if first < stop:
                held[first] = _Extent(extent.born, first, stop - first, extent.kind, is_page=True)
        yield _Extent(extent.born, low, high - low, extent.kind, is_page=True, gone=moment)


class _Naming:
    """Names of what segments are told apart by: the size of their blocks, and pool and stream where it is not 0."""

    def __init__(self, recording: Recording) -> None:
        self._program = recording.program
        self._rows = recording.rebuilt.row_of_op
        self._pools = recording.history.labels.pool

    def kind_of(self, op: int, size: int) -> str:
        """Name a segment or a page of this size that an operation took."""
        is_request = self._program.op[op] == Op.ALLOCATE
        pool = int(self._pools[self._rows[op]]) if is_request and len(self._pools) else 0
        return self.kind(size == _SMALL_BYTES, int(self._program.stream[op]) if is_request else 0, pool)

    def kind(self, is_small: bool, stream: int, pool: int) -> str:  # noqa: FBT001  one of three that tell them apart
        name = "small blocks (up to 1 MiB)" if is_small else "large blocks"
        name += f", private pool {pool}" if pool else ""
        return name + (f", stream {stream:#x}" if stream else "")
