"""The memory that was reserved before recording began: what is there at the end, taken back event by event.

Ranges of addresses are followed, not their beginnings: an expandable segment gives pages back in its middle, and a
snapshot then shows its pieces as segments of their own.
"""

from dataclasses import replace

import numpy as np

from ullage.recorded.history import Action, History, Segment
from ullage.recorded.program import is_one_of
from ullage.recorded.rebuild.life import GIVEN_BACK, TAKEN
from ullage.recorded.rebuild.ranges import Ranges
from ullage.recorded.settings import SMALL_SEGMENT_BYTES, Settings


def reserved_before(history: History, settings: Settings) -> list[Segment]:
    """Return the segments that no entry of a history created, by address, without their blocks.

    Of an expandable segment each stretch that was mapped is one entry; the settings tell the size of its pages.
    """
    ranges: Ranges[Segment] = Ranges()
    for segment in history.segments:
        ranges.put(segment.address, segment.address + segment.size, segment)
    moved = np.flatnonzero(is_one_of(history.action, (*TAKEN, *GIVEN_BACK)))
    columns = (history.action, history.address, history.size, history.stream)
    rows = zip(*(column[moved].tolist() for column in columns), strict=True)
    taken = {int(action) for action in TAKEN}
    for action, address, size, stream in reversed(list(rows)):
        if action in taken:
            ranges.cut(address, address + size)
            continue
        large_page = settings.large_segment_bytes if action == Action.SEGMENT_UNMAP else None
        ranges.put(address, address + size, _given_back(ranges, address, size, stream, large_page))
    return [
        Segment(  # written out: a run may have thousands of segments, and `replace` is slow
            address=start,
            size=stop - start,
            stream=segment.stream,
            is_large=segment.is_large,
            is_expandable=segment.is_expandable,
            pool=segment.pool,
            blocks=(),
        )
        for start, stop, segment in ranges
    ]


def _given_back(ranges: Ranges[Segment], address: int, size: int, stream: int, large_page: int | None) -> Segment:
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
        beside = next((each for *_, each in touching if each.is_expandable and each.stream == stream), None)
        if beside is not None:
            return replace(beside, address=address, size=size)
    is_large = size % large_page == 0 if large_page is not None else size != SMALL_SEGMENT_BYTES
    return Segment(
        address=address,
        size=size,
        stream=stream,
        is_large=is_large,
        is_expandable=is_expandable,
        pool=0,
        blocks=(),
    )
