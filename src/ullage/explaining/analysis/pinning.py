"""Finds the live blocks that keep free memory from being used: the smallest set whose free lets the allocation succeed.

Replays prove the set: if all its blocks are freed just before the request, the request succeeds. If any one of them is
kept, it fails.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage.explaining.analysis.recording import HeldBlock, Recording, insert
from ullage.recorded.allocator.replay import BlockColumns, State
from ullage.recorded.program import Column, Op

_MOST_BLOCKS_TRIED: Final = 400  # the largest number of blocks that are tried one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A segment with free memory that the failed allocation could not use. Sizes are in bytes."""

    address: int
    size_bytes: int
    free_bytes: int
    largest_free_bytes: int
    blocks: tuple[HeldBlock, ...]
    """The live blocks in the segment."""


def pins_of(recording: Recording) -> list[Pin]:
    """Return the segments that contain both free memory and live blocks. The segment with the most free memory comes
    first.
    """
    blocks = recording.done.blocks
    held: dict[int, list[HeldBlock]] = {}
    for block in recording.held():
        held.setdefault(block.segment, []).append(block)
    found = []
    for segment, rows in _rows_by_segment(blocks):
        free = blocks.size[rows[blocks.state[rows] == State.FREE]]
        if len(free) and segment in held:
            found.append(
                Pin(
                    address=int(blocks.segment_address[segment]),
                    size_bytes=int(blocks.size[rows[blocks.state[rows] != State.UNMAPPED]].sum()),
                    free_bytes=int(free.sum()),
                    largest_free_bytes=int(free.max()),
                    blocks=tuple(held[segment]),
                )
            )
    return sorted(found, key=lambda pin: -pin.free_bytes)


def _rows_by_segment(blocks: BlockColumns) -> Iterator[tuple[int, Column]]:
    order = np.argsort(blocks.segment, kind="stable")
    segments, first = np.unique(blocks.segment[order], return_index=True)
    return zip(segments.tolist(), np.split(order, first)[1:], strict=True)


def smallest_set(recording: Recording, segment_bytes: int) -> tuple[HeldBlock, ...]:
    """Return a smallest set of blocks whose absence lets the failed allocation succeed. Return an empty set if none was
    found.

    Args:
        recording: a run with a failed request.
        segment_bytes: the size of the segment that the failed request needed from the driver.
    """
    if recording.failing_op is None:
        return ()
    candidates = (_cheapest_stretch(recording, segment_bytes), _emptiest_segments(recording, segment_bytes))
    for chosen in sorted(filter(None, candidates), key=lambda blocks: sum(block.size_bytes for block in blocks)):
        if len(chosen) <= _MOST_BLOCKS_TRIED and _succeeds(recording, chosen):
            return _thinned(recording, chosen)
    return ()


def _succeeds(recording: Recording, freed: list[HeldBlock]) -> bool:
    failing = recording.failing_op
    assert failing is not None
    program = insert(recording.program, {failing: [(Op.FREE, block.key) for block in freed]})
    done = recording.run(recording.rebuilt.settings, program)
    return failing + len(freed) not in (*done.oom_ops.tolist(), *done.rejected_ops.tolist())


def _thinned(recording: Recording, chosen: list[HeldBlock]) -> tuple[HeldBlock, ...]:
    kept = list(chosen)
    for block in sorted(chosen, key=lambda block: -block.size_bytes):
        without = [other for other in kept if other is not block]
        if without and _succeeds(recording, without):
            kept = without
    return tuple(kept)


def _cheapest_stretch(recording: Recording, wanted: int) -> list[HeldBlock]:
    best: list[HeldBlock] = []
    best_cost: int | None = None
    blocks = recording.done.blocks
    keyed = {block.address: block for block in recording.held()}
    for _, inside in _rows_by_segment(blocks):
        rows = inside[blocks.state[inside] != State.UNMAPPED]
        addresses, sizes = blocks.address[rows].tolist(), blocks.size[rows].tolist()
        movable = [
            keyed.get(address) if state == State.ALLOCATED else None
            for address, state in zip(addresses, blocks.state[rows].tolist(), strict=True)
        ]
        blocked = (blocks.state[rows] == State.WAITING).tolist()
        first, total, cost = 0, 0, 0
        for last, size in enumerate(sizes):
            if blocked[last]:
                first, total, cost = last + 1, 0, 0
                continue
            total += size
            cost += size if movable[last] else 0
            while first < last and total - sizes[first] >= wanted:
                total -= sizes[first]
                cost -= sizes[first] if movable[first] else 0
                first += 1
            if total >= wanted and cost and (best_cost is None or cost < best_cost):
                best_cost = cost
                best = [block for block in movable[first : last + 1] if block is not None]
    return best


def _emptiest_segments(recording: Recording, wanted: int) -> list[HeldBlock]:
    free = recording.rebuilt.room_bytes - recording.done.now.reserved_bytes
    chosen: list[HeldBlock] = []
    for pin in sorted(pins_of(recording), key=lambda pin: (pin.size_bytes - pin.free_bytes) / pin.size_bytes):
        if free >= wanted:
            break
        free += pin.size_bytes
        chosen += pin.blocks
    return chosen if free >= wanted else []
