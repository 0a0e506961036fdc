"""Every block and every segment of a recording with its birth and its end, as columns.

Sizes after rounding come from the state at the end, or else from a replay of the run: a snapshot does not record them.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage._errors import UllageError
from ullage.allocator.replay import ReplayDevice, replay
from ullage.history import Action, History
from ullage.program import Column, StartSegment
from ullage.rebuild import Rebuilt
from ullage.rebuild.life import BlockLives
from ullage.settings import BLOCK_UNIT_BYTES, SMALL_SEGMENT_BYTES, Settings

NONE: Final = -1
"""Stands for "nothing" in a column: no event, no stack, no segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTable:
    """One row a block, as columns of equal length: those of the trace in order, then those from before it."""

    address: Column
    size: Column
    requested: Column
    stream: Column
    segment: Column
    born: Column
    freed: Column
    died: Column
    stack: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTable:
    """One row a segment, as columns of equal length; an expandable one that is there at the end has a row a stretch."""

    address: Column
    size: Column
    stream: Column
    pool: Column
    is_small: Column
    is_expandable: Column
    born: Column
    died: Column
    stack: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class _SegmentRow:
    """A row of `SegmentTable`."""

    address: int
    size: int
    stream: int
    pool: int
    is_small: bool
    is_expandable: bool
    born: int = NONE
    died: int = NONE
    stack: int = NONE


@dataclass(slots=True, kw_only=True)
class _SegmentLife:
    """An expandable segment from its first page on, while it has any."""

    born: int
    stack: int
    stream: int
    pool: int
    is_small: bool
    mapped_bytes: int
    begin: int
    end: int


def segments_of(history: History, rebuilt: Rebuilt) -> SegmentTable:
    """Return the segments that were there before, those that the trace allocates, and the expandable ones."""
    rows = [*_plain_segments(history, rebuilt), *_expandable_segments(history, rebuilt)]
    columns = {name: [getattr(row, name) for row in rows] for name in SegmentTable.__slots__}
    return SegmentTable(**{name: np.array(column, np.int64) for name, column in columns.items()})


def _plain_segments(history: History, rebuilt: Rebuilt) -> Iterator[_SegmentRow]:
    """Yield the segments that are taken and given back as a whole."""
    ends: dict[int, list[int]] = {}
    for row in np.flatnonzero(history.action == Action.SEGMENT_FREE).tolist():
        ends.setdefault(int(history.address[row]), []).append(row)

    def end_behind(row: int, address: int) -> int:
        there = ends.get(address, [])
        return next(iter(there[bisect_right(there, row) :][:1]), NONE)

    for start in rebuilt.program.start:
        if not start.is_expandable:
            yield _SegmentRow(
                address=start.address,
                size=start.reserved_bytes,
                stream=start.stream,
                pool=start.pool,
                is_small=start.is_small,
                is_expandable=False,
                died=end_behind(NONE, start.address),
            )
    for row in np.flatnonzero(history.action == Action.SEGMENT_ALLOC).tolist():
        address, size = int(history.address[row]), int(history.size[row])
        yield _SegmentRow(
            address=address,
            size=size,
            stream=int(history.stream[row]),
            pool=_pool_at(history, row),
            is_small=size <= SMALL_SEGMENT_BYTES,
            is_expandable=False,
            born=row,
            died=end_behind(row, address),
            stack=int(history.stack[row]),
        )


def _pool_at(history: History, row: int) -> int:
    return int(history.labels.pool[row]) if len(history.labels.pool) else 0


def _expandable_segments(history: History, rebuilt: Rebuilt) -> Iterator[_SegmentRow]:
    """Yield each expandable segment from its first page to its last; of one that is there at the end every stretch."""
    started = [start for start in rebuilt.program.start if start.is_expandable]
    last = [segment for segment in history.segments if segment.is_expandable]
    rows = np.flatnonzero(np.isin(history.action, (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)))
    spans = _spans(
        [(start.address, sum(size for size, *_ in start.blocks)) for start in started]
        + [(segment.address, segment.size) for segment in last]
        + list(zip(history.address[rows].tolist(), history.size[rows].tolist(), strict=True))
    )
    lives = {bisect_right(spans, start.address): _life_of(start) for start in started}
    for row in rows.tolist():
        address, size = int(history.address[row]), int(history.size[row])
        span = bisect_right(spans, address)
        if history.action[row] == Action.SEGMENT_MAP:
            life = lives.setdefault(span, _life_from(history, row, rebuilt.settings))
            life.mapped_bytes += size
            life.begin, life.end = min(life.begin, address), max(life.end, address + size)
        elif span in lives:
            lives[span].mapped_bytes -= size
            if lives[span].mapped_bytes <= 0:
                yield _row_of(lives.pop(span), died=row)
    for segment in last:
        born = lives.get(bisect_right(spans, segment.address))
        yield _SegmentRow(
            address=segment.address,
            size=segment.size,
            stream=segment.stream,
            pool=segment.pool,
            is_small=not segment.is_large,
            is_expandable=True,
            born=born.born if born is not None else NONE,
            stack=born.stack if born is not None else NONE,
        )


def _spans(ranges: list[tuple[int, int]]) -> list[int]:
    """Return where ranges (address, bytes) begin, those that touch taken together: each is one expandable segment.

    Reservations of addresses have room between them: no card can fill one.
    """
    found: list[int] = []
    end = -1
    for address, size in sorted(ranges):
        if address > end:
            found.append(address)
        end = max(end, address + size)
    return found


def _life_of(start: StartSegment) -> _SegmentLife:
    return _SegmentLife(
        born=NONE,
        stack=NONE,
        stream=start.stream,
        pool=start.pool,
        is_small=start.is_small,
        mapped_bytes=start.reserved_bytes,
        begin=start.address,
        end=start.address + sum(size for size, *_ in start.blocks),
    )


def _life_from(history: History, row: int, settings: Settings) -> _SegmentLife:
    address = int(history.address[row])
    return _SegmentLife(
        born=row,
        stack=int(history.stack[row]),
        stream=int(history.stream[row]),
        pool=_pool_at(history, row),
        is_small=int(history.size[row]) % settings.large_segment_bytes != 0,
        mapped_bytes=0,
        begin=address,
        end=address,
    )


def _row_of(life: _SegmentLife, died: int) -> _SegmentRow:
    return _SegmentRow(
        address=life.begin,
        size=life.end - life.begin,
        stream=life.stream,
        pool=life.pool,
        is_small=life.is_small,
        is_expandable=True,
        born=life.born,
        died=died,
        stack=life.stack,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """When blocks are freed, and when their places can be used again; `NONE`: not in the recording."""

    freed: Column
    """By the entry that allocates."""
    died: Column
    before: Mapping[int, tuple[int, int]]
    """Both, by address, of blocks that no entry allocates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockBefore:
    """A block that was there when recording began."""

    address: int
    size: int
    requested: int
    stack: int
    freed: int
    died: int


def blocks_of(history: History, rebuilt: Rebuilt, segments: SegmentTable) -> BlockTable:
    """Return every block: those that the trace allocates, and those that were there before."""
    made = np.flatnonzero(history.action == Action.ALLOC)
    ends = _ends(history)
    older = list(_blocks_before(rebuilt, ends))

    def all_of(of_made: Column, name: str) -> Column:
        return np.concatenate([of_made, np.array([getattr(block, name) for block in older], np.int64)])

    address = all_of(history.address[made], "address")
    born = np.concatenate([made, np.full(len(older), NONE)])
    segment = _segment_of(address, born, segments)
    owner = segment[len(made) :]
    stream_before = np.where(owner >= 0, np.append(segments.stream, 0)[owner], 0)
    died = all_of(ends.died[made], "died")
    size = all_of(_replayed_sizes(history, rebuilt)[made], "size")
    return BlockTable(
        address=address,
        size=_with_sizes_at_end(history, address, died, size),
        requested=all_of(history.size[made], "requested"),
        stream=np.concatenate([history.stream[made], stream_before]),
        segment=segment,
        born=born,
        freed=all_of(ends.freed[made], "freed"),
        died=died,
        stack=all_of(history.stack[made], "stack"),
    )


def _ends(history: History) -> _Ends:
    lives = BlockLives.of(history)
    freed, died, owner = (np.full(len(history), NONE, np.int64) for _ in range(3))
    asks, completes = lives.action == Action.FREE_REQUESTED, lives.action == Action.FREE_COMPLETED
    was_allocated, was_asked = lives.previous == Action.ALLOC, lives.previous == Action.FREE_REQUESTED
    first = (asks | completes) & was_allocated
    freed[lives.previous_row[first]] = lives.row[first]
    owner[lives.row[first]] = lives.previous_row[first]
    at_once = completes & was_allocated
    died[lives.previous_row[at_once]] = lives.row[at_once]
    later = completes & was_asked
    blocks = owner[lives.previous_row[later]]
    died[blocks[blocks >= 0]] = lives.row[later][blocks >= 0]
    done = dict(zip(lives.previous_row[later].tolist(), lives.row[later].tolist(), strict=True))
    before: dict[int, tuple[int, int]] = {}
    for at in np.flatnonzero((lives.previous < 0) & (asks | completes)).tolist():
        row = int(lives.row[at])
        # A free that only ends was asked for before recording began; files before 2023 have one entry for a free.
        asked = NONE if completes[at] and asks.any() else row
        before[int(history.address[row])] = asked, row if completes[at] else done.get(row, NONE)
    return _Ends(freed=freed, died=died, before=before)


def _blocks_before(rebuilt: Rebuilt, ends: _Ends) -> Iterator[_BlockBefore]:
    for segment in rebuilt.program.start:
        address = segment.address
        for size, asked, key in segment.blocks:
            if key >= 0:
                freed, died = ends.before.get(address, (NONE, NONE))
                stack = int(rebuilt.stack_of_key[key])
                yield _BlockBefore(address=address, size=size, requested=asked, stack=stack, freed=freed, died=died)
            address += size


def _replayed_sizes(history: History, rebuilt: Rebuilt) -> Column:
    """Return, for each entry that allocates, the bytes that its block takes in a replay."""
    sizes = -(-history.size // BLOCK_UNIT_BYTES) * BLOCK_UNIT_BYTES
    try:
        done = replay(rebuilt.program, rebuilt.settings, ReplayDevice(total_bytes=rebuilt.room_bytes), places=True)
    except UllageError:
        return sizes
    assert done.places is not None
    ops = np.flatnonzero(done.places.address >= 0)
    sizes[rebuilt.row_of_op[ops]] = done.places.size_bytes[ops]
    return sizes


def _with_sizes_at_end(history: History, address: Column, died: Column, size: Column) -> Column:
    """Return the sizes, of blocks that are there at the end as the snapshot has them."""
    known = {
        block.address: block.size
        for segment in history.segments
        for block in segment.blocks
        if block.state != "inactive"
    }
    for row in np.flatnonzero(died < 0).tolist():
        size[row] = known.get(int(address[row]), size[row])
    return size


def _segment_of(address: Column, born: Column, segments: SegmentTable) -> Column:
    """Return the row of the segment in which each block lies: of those at its address, the one that was there then."""
    begin, end = segments.address, segments.address + segments.size
    cuts = np.unique(np.concatenate([begin, end]))
    pieces = [
        (piece, since, row)
        for row, (first, last, since) in enumerate(
            zip(
                np.searchsorted(cuts, begin).tolist(),
                np.searchsorted(cuts, end).tolist(),
                segments.born.tolist(),
                strict=True,
            )
        )
        for piece in range(first, last)
    ]
    if not pieces:
        return np.full(len(address), NONE, np.int64)
    piece, since, row = np.array(sorted(pieces), np.int64).T
    span = int(max(born.max(initial=0), since.max())) + 2
    wanted = (np.searchsorted(cuts, address, side="right") - 1) * span + born + 1
    found = np.searchsorted(piece * span + since + 1, wanted, side="right") - 1
    owner = np.where(found >= 0, row[found], NONE)
    lies_in = (owner >= 0) & (begin[owner] <= address) & (address < end[owner])
    is_there = (segments.died[owner] < 0) | (segments.died[owner] > born)
    return np.where(lies_in & is_there, owner, NONE)
