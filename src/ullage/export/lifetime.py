"""Every block and every segment of a recording with its birth and its end, as columns.

Sizes after rounding come from the state at the end, or else from a replay of the run: a snapshot does not record them.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage._errors import UllageError
from ullage.allocator.replay import ReplayDevice, replay
from ullage.history import Action, History
from ullage.program import Column
from ullage.rebuild import Rebuilt
from ullage.rebuild.life import BlockLives
from ullage.settings import BLOCK_UNIT_BYTES

_SMALL_SEGMENT_BYTES: Final = 2 << 20
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
    """One row a segment, as columns of equal length; of an expandable one what was mapped at the end."""

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
    """Return the segments that were there before, those that the trace allocates, and what the end has beside them."""
    taken = np.flatnonzero(history.action == Action.SEGMENT_ALLOC)
    ends: dict[int, list[int]] = {}
    for row in np.flatnonzero(history.action == Action.SEGMENT_FREE).tolist():
        ends.setdefault(int(history.address[row]), []).append(row)
    rows = []
    expandable = {segment.address for segment in history.segments if segment.is_expandable}
    for start in rebuilt.program.start:
        if start.address not in expandable:
            died = ends.get(start.address, [NONE])[0]
            is_small, is_expandable = int(start.is_small), int(start.is_expandable)
            rows.append(
                (
                    start.address,
                    start.reserved_bytes,
                    start.stream,
                    start.pool,
                    is_small,
                    is_expandable,
                    NONE,
                    died,
                    NONE,
                )
            )
    pools = history.labels.pool
    for row in taken.tolist():
        address, size = int(history.address[row]), int(history.size[row])
        died = next((end for end in ends.get(address, ()) if end > row), NONE)
        pool = int(pools[row]) if len(pools) else 0
        is_small = int(size <= _SMALL_SEGMENT_BYTES)
        rows.append((address, size, int(history.stream[row]), pool, is_small, 0, row, died, int(history.stack[row])))
    older = {start.address for start in rebuilt.program.start if start.is_expandable}
    mapped = np.flatnonzero(history.action == Action.SEGMENT_MAP)
    for segment in history.segments:
        if not segment.is_expandable:
            continue
        place = history.address[mapped]
        within = mapped[(place >= segment.address) & (place < segment.address + segment.size)]
        born = int(within[0]) if len(within) and segment.address not in older else NONE
        stack = int(history.stack[born]) if born >= 0 else NONE
        is_small = int(not segment.is_large)
        rows.append((segment.address, segment.size, segment.stream, segment.pool, is_small, 1, born, NONE, stack))
    table = np.array(rows, np.int64).reshape(-1, 9).T
    return SegmentTable(**dict(zip(SegmentTable.__slots__, table, strict=True)))


def blocks_of(history: History, rebuilt: Rebuilt, segments: SegmentTable) -> BlockTable:
    """Return every block: those that the trace allocates, and those that were there before."""
    made = np.flatnonzero(history.action == Action.ALLOC)
    freed, died, end_before = _ends(history)
    before = _before(rebuilt, end_before)
    address = np.concatenate([history.address[made], before[0]])
    born = np.concatenate([made, np.full(before.shape[1], NONE)])
    segment = _segment_of(address, born, segments)
    owner = segment[len(made) :]
    stream_before = np.where(owner >= 0, np.append(segments.stream, 0)[owner], 0)
    died = np.concatenate([died[made], before[5]])
    size = np.concatenate([_replayed_sizes(history, rebuilt)[made], before[1]])
    return BlockTable(
        address=address,
        size=_with_sizes_at_end(history, address, died, size),
        requested=np.concatenate([history.size[made], before[2]]),
        stream=np.concatenate([history.stream[made], stream_before]),
        segment=segment,
        born=born,
        freed=np.concatenate([freed[made], before[4]]),
        died=died,
        stack=np.concatenate([history.stack[made], before[3]]),
    )


def _ends(history: History) -> tuple[Column, Column, dict[int, tuple[int, int]]]:
    """Return for each entry that allocates when its block is freed, and when its place can be used again.

    Last, both by address for blocks that no entry allocates.
    """
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
    unseen = np.flatnonzero((lives.previous < 0) & (asks | completes))
    before = {
        int(history.address[lives.row[at]]): (
            int(lives.row[at]),
            int(lives.row[at]) if completes[at] else done.get(int(lives.row[at]), NONE),
        )
        for at in unseen.tolist()
    }
    return freed, died, before


def _before(rebuilt: Rebuilt, end_of: dict[int, tuple[int, int]]) -> Column:
    """Return the blocks that were there before: address, size, requested, stack, freed and died, a row each."""
    rows = []
    for segment in rebuilt.program.start:
        address = segment.address
        for size, asked, key in segment.blocks:
            if key >= 0:
                rows.append((address, size, asked, int(rebuilt.stack_of_key[key]), *end_of.get(address, (NONE, NONE))))
            address += size
    return np.array(rows, np.int64).reshape(-1, 6).T


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
                np.where(segments.is_expandable, NONE, segments.born).tolist(),  # its first pages may be older
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
