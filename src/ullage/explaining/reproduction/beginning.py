"""The state at the beginning of a recording, rebuilt by requests and frees that lead to the same blocks.

A segment is asked for whole and given back to the cache, then its blocks are asked for in order of their addresses,
with something in every hole; at the end the holes are freed. Where a hole is so small that nothing can be put into
it, the block before it is larger by that. Unmapped pages inside an expandable segment are not made again.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ullage.recorded.program import UNMAPPED_KEY, Op, StartSegment
from ullage.recorded.settings import BLOCK_UNIT_BYTES, LARGE_SEGMENT_BYTES, LARGEST_SMALL_BYTES, Settings

_OWN_SEGMENT_FROM_BYTES: Final = LARGE_SEGMENT_BYTES // 2  # from here on a request gets a segment of its own size

Row = tuple[int, int, int, int]
"""An operation as (op, key, bytes, stream)."""
_Piece = tuple[int, int, int]
"""A piece of a segment as (bytes, bytes asked for, key or -1 for a hole)."""


def beginning_of(start: Sequence[StartSegment], settings: Settings, *, first_key: int) -> list[Row]:
    """Return operations that lead from an empty allocator to the segments that were there.

    Args:
        start: the segments, with blocks of the program's keys.
        settings: the run's settings.
        first_key: the first key that is free for what is put into holes.
    """
    rows: list[Row] = []
    holes: list[Row] = []
    key = first_key
    for segment in start:
        pieces = list(_pieces(segment))
        size_bytes = sum(size for size, *_ in segment.blocks)
        if _is_asked_for_whole(segment, pieces, size_bytes, settings):
            rows.append((Op.ALLOCATE, key, size_bytes, segment.stream))
            rows.append((Op.FREE, key, 0, segment.stream))
            key += 1
        for size, asked, owner in pieces:
            fits = -(-max(asked, 1) // BLOCK_UNIT_BYTES) * BLOCK_UNIT_BYTES == size
            number = owner
            if owner < 0:
                number, key = key, key + 1
                holes.append((Op.FREE, number, 0, segment.stream))
            rows.append((Op.ALLOCATE, number, asked if fits else size, segment.stream))
    return rows + holes


def _is_asked_for_whole(segment: StartSegment, pieces: list[_Piece], size_bytes: int, settings: Settings) -> bool:
    """Return whether the first block alone would get another segment."""
    if segment.is_small or segment.is_expandable or size_bytes < _OWN_SEGMENT_FROM_BYTES:
        return False
    first = pieces[0][0]
    return first >= _OWN_SEGMENT_FROM_BYTES or size_bytes != settings.large_segment_bytes


def _pieces(segment: StartSegment) -> Iterator[_Piece]:
    """Yield the blocks of a segment and what fills its holes, in order."""
    smallest = BLOCK_UNIT_BYTES if segment.is_small else LARGEST_SMALL_BYTES + BLOCK_UNIT_BYTES
    largest = LARGEST_SMALL_BYTES if segment.is_small else sum(size for size, *_ in segment.blocks)
    held: _Piece | None = None
    for size, asked, key in segment.blocks:
        if key >= 0:
            if held is not None:
                yield held
            held = (size, asked, key)
        elif key == UNMAPPED_KEY:
            if held is not None:
                yield held
            held = None
        elif size < smallest and held is not None:
            held = (held[0] + size, held[1], held[2])
        else:
            if held is not None:
                yield held
            held = None
            while size > 0:
                part = min(size, largest)
                yield part, part, -1
                size -= part
    if held is not None:
        yield held
