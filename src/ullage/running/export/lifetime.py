"""Creates tables of all memory blocks and segments, with the events that allocated and freed them.

A snapshot does not contain the rounded sizes of freed blocks. They are computed by a replay of the run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage.base.errors import UllageError
from ullage.recorded.allocator.replay import ReplayDevice, replay
from ullage.recorded.history import Action, History
from ullage.recorded.program import Column
from ullage.recorded.rebuild import Rebuilt
from ullage.recorded.rebuild.life import BlockLives
from ullage.recorded.rebuild.segment_life import NONE, LifeFinder, SegmentLife
from ullage.recorded.settings import BLOCK_UNIT_BYTES

_OF_BLOCKS_BEFORE: Final = ("address", "size", "requested", "stack", "freed", "died")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTable:
    """A table of all memory blocks in a recording. All columns have the same length."""

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
    """A table of all segments in a recording. All columns have the same length.

    An expandable segment that exists at the end has one row for each mapped range.
    """

    address: Column
    size: Column
    stream: Column
    pool: Column
    is_small: Column
    is_expandable: Column
    born: Column
    died: Column
    stack: Column


def segments_of(history: History, rebuilt: Rebuilt) -> SegmentTable:
    """Return the table of all segments in a recording."""
    columns = np.array(list(_segment_rows(history, rebuilt)), np.int64).reshape(-1, len(SegmentTable.__slots__)).T
    return SegmentTable(**dict(zip(SegmentTable.__slots__, columns, strict=True)))


def _segment_rows(history: History, rebuilt: Rebuilt) -> Iterator[tuple[int, ...]]:
    for life in rebuilt.lives.lives:
        if not life.is_expandable or life.died >= 0:
            yield _row_of(history, life, life.begin, life.end)
    last = [segment for segment in history.segments if segment.is_expandable]
    starts = np.array([segment.address for segment in last], np.int64)
    numbers = rebuilt.lives.at(starts, np.full(len(last), len(history)))
    for segment, number in zip(last, numbers.tolist(), strict=True):
        if number >= 0:
            yield _row_of(history, rebuilt.lives.lives[number], segment.address, segment.address + segment.size)


def _row_of(history: History, life: SegmentLife, begin: int, end: int) -> tuple[int, ...]:
    stack = int(history.stack[life.born]) if life.born >= 0 else NONE
    kind = life.stream, life.pool, not life.is_large, life.is_expandable
    return begin, end - begin, *kind, life.born, life.died, stack


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    # an event that was not recorded is `NONE`
    # Maps the index of a block's allocation event to the index of the event that requests to free the block.
    freed: Column
    died: Column
    # Maps the address of an older block to the indices of its free event and its reuse event. An older block was
    # allocated before recording began.
    before: Mapping[int, tuple[int, int]]


def blocks_of(history: History, rebuilt: Rebuilt, segments: SegmentTable) -> BlockTable:
    """Return the table of all memory blocks in a recording."""
    made = np.flatnonzero(history.action == Action.ALLOC)
    ends = _ends(history)
    older = np.array(list(_blocks_before(rebuilt, ends)), np.int64).reshape(-1, len(_OF_BLOCKS_BEFORE))

    def all_of(of_made: Column, name: str) -> Column:
        return np.concatenate([of_made, older[:, _OF_BLOCKS_BEFORE.index(name)]])

    address = all_of(history.address[made], "address")
    born = np.concatenate([made, np.full(len(older), NONE)])
    finder = LifeFinder(segments.address, segments.address + segments.size, segments.born, segments.died)
    segment = finder.at(address, born)
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
        # A free that is only completed was requested before recording began; snapshots before 2023 have one event for a
        # free.
        asked = NONE if completes[at] and asks.any() else row
        before[int(history.address[row])] = asked, row if completes[at] else done.get(row, NONE)
    return _Ends(freed=freed, died=died, before=before)


def _blocks_before(rebuilt: Rebuilt, ends: _Ends) -> Iterator[tuple[int, ...]]:
    for segment in rebuilt.program.start:
        address = segment.address
        for size, asked, key in segment.blocks:
            if key >= 0:
                freed, died = ends.before.get(address, (NONE, NONE))
                yield address, size, asked, int(rebuilt.stack_of_key[key]), freed, died
            address += size


def _replayed_sizes(history: History, rebuilt: Rebuilt) -> Column:
    sizes = -(-history.size // BLOCK_UNIT_BYTES) * BLOCK_UNIT_BYTES
    try:
        done = replay(rebuilt.program, rebuilt.settings, ReplayDevice.of(rebuilt), places=True)
    except UllageError:
        return sizes
    assert done.places is not None
    ops = np.flatnonzero(done.places.address >= 0)
    sizes[rebuilt.row_of_op[ops]] = done.places.size_bytes[ops]
    return sizes


def _with_sizes_at_end(history: History, address: Column, died: Column, size: Column) -> Column:
    known = {
        block.address: block.size
        for segment in history.segments
        for block in segment.blocks
        if block.state != "inactive"
    }
    for row in np.flatnonzero(died < 0).tolist():
        size[row] = known.get(int(address[row]), size[row])
    return size
