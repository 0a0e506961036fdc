"""The memory that was reserved before recording began: what is there at the end, taken back event by event.

Ranges of addresses are followed, not their beginnings: an expandable segment gives pages back in its middle, and a
snapshot then shows its pieces as segments of their own.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ullage._units import MIB
from ullage.history import Action, History, Segment
from ullage.rebuild.life import GIVEN_BACK, TAKEN
from ullage.settings import Settings

_SMALL_PAGE_BYTES: Final = 2 * MIB
"""The size of every segment of the small pool, and of its pages (kSmallBuffer)."""


@dataclass(slots=True)
class _Ranges:
    """Segments, or pieces of them, that do not overlap, in order of their addresses."""

    starts: list[int] = field(default_factory=list)
    segment_at: dict[int, Segment] = field(default_factory=dict)

    def add(self, segment: Segment) -> None:
        self.remove(segment.address, segment.address + segment.size)
        self.starts.insert(bisect_left(self.starts, segment.address), segment.address)
        self.segment_at[segment.address] = segment

    def remove(self, start: int, stop: int) -> None:
        """Take a range out; of an expandable segment what lies beside the range stays."""
        for segment in list(self.overlapping(start, stop)):
            del self.starts[bisect_left(self.starts, segment.address)]
            del self.segment_at[segment.address]
            end = segment.address + segment.size
            for low, high in ((segment.address, start), (stop, end)):
                if segment.is_expandable and low < high:
                    self.starts.insert(bisect_left(self.starts, low), low)
                    self.segment_at[low] = replace(segment, address=low, size=high - low)

    def overlapping(self, start: int, stop: int) -> Iterator[Segment]:
        """Yield what shares an address with a range."""
        for index in range(max(0, bisect_right(self.starts, start) - 1), bisect_left(self.starts, stop)):
            segment = self.segment_at[self.starts[index]]
            if segment.address + segment.size > start:
                yield segment


def reserved_before(history: History, settings: Settings) -> list[Segment]:
    """Return the segments that no entry of a history created, by address, without their blocks.

    Of an expandable segment each stretch that was mapped is one entry; the settings tell the size of its pages.
    """
    ranges = _Ranges()
    for segment in history.segments:
        ranges.add(replace(segment, blocks=()))
    moved = np.flatnonzero(np.isin(history.action, (*TAKEN, *GIVEN_BACK)))
    columns = (history.action, history.address, history.size, history.stream)
    rows = zip(*(column[moved].tolist() for column in columns), strict=True)
    for action, address, size, stream in reversed(list(rows)):
        if action in TAKEN:
            ranges.remove(address, address + size)
            continue
        large_page = settings.large_segment_bytes if action == Action.SEGMENT_UNMAP else None
        ranges.add(_given_back(ranges, address, size, stream, large_page))
    return [ranges.segment_at[start] for start in ranges.starts]


def _given_back(ranges: _Ranges, address: int, size: int, stream: int, large_page: int | None) -> Segment:
    """Return the segment that an entry gave back, or the stretch of an expandable one; what touches it is of its kind.

    Args:
        ranges: what there is behind it in time.
        address: where it begins.
        size: its bytes.
        stream: the stream that it was for.
        large_page: bytes of a page of the large pool; None: the segment was no expandable one.
    """
    is_expandable = large_page is not None
    if is_expandable:
        touching = ranges.overlapping(address - 1, address + size + 1)
        beside = next((each for each in touching if each.is_expandable and each.stream == stream), None)
        if beside is not None:
            return replace(beside, address=address, size=size)
    is_large = size % large_page == 0 if large_page is not None else size != _SMALL_PAGE_BYTES
    return Segment(
        address=address,
        size=size,
        stream=stream,
        is_large=is_large,
        is_expandable=is_expandable,
        pool=0,
        blocks=(),
    )
