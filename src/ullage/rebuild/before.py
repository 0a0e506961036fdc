"""The blocks that were there before recording began: freed later, or there at the end, without an allocation."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage._units import MIB
from ullage.history import Action, History, Segment
from ullage.program import StartSegment
from ullage.rebuild.life import GIVEN_BACK, TAKEN, BlockLives

_UNSPLIT_BYTES: Final = MIB
"""Largest remainder that the large pool does not split off (DeviceCachingAllocator::should_split): what looks like a
small hole behind a block that is known only from its free belongs to that block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """The segments and blocks that were there when recording began; their keys count from 0."""

    segments: tuple[StartSegment, ...]
    key_of_address: Mapping[int, int]
    stacks: tuple[int, ...]
    requested: tuple[int, ...]

    @classmethod
    def of(cls, history: History, lives: BlockLives) -> "Before":
        alive = _alive_before(history, lives)
        addresses = sorted(alive)
        segments, keys = [], {}
        stacks: list[int] = []
        requested: list[int] = []
        for segment in sorted(_segments_before(history).values(), key=lambda segment: segment.address):
            at, stop = segment.address, segment.address + segment.size
            inside = addresses[bisect_left(addresses, at) : bisect_left(addresses, stop)]
            blocks: list[tuple[int, int, int]] = []
            for address, following in zip(inside, [*inside[1:], stop], strict=False):
                size, asked, stack, is_exact = alive[address]
                end = min(address + size, stop)
                if end <= max(address, at):
                    continue
                if segment.is_large and not is_exact and 0 < following - end <= _UNSPLIT_BYTES:
                    end = following
                if address > at:
                    blocks.append((address - at, 0, -1))
                keys[address] = len(stacks)
                blocks.append((end - address, asked, len(stacks)))
                stacks.append(stack)
                requested.append(asked)
                at = end
            if at < stop:
                blocks.append((stop - at, 0, -1))
            segments.append(
                StartSegment(
                    address=segment.address,
                    stream=segment.stream,
                    is_small=not segment.is_large,
                    is_expandable=segment.is_expandable,
                    blocks=tuple(blocks),
                )
            )
        return cls(segments=tuple(segments), key_of_address=keys, stacks=tuple(stacks), requested=tuple(requested))


def _alive_before(history: History, lives: BlockLives) -> dict[int, tuple[int, int, int, bool]]:
    """Return the blocks that no entry allocated, by address: (bytes, bytes asked for, stack, is exact)."""
    rows = lives.freed_unseen()
    pairs = zip(history.address[rows].tolist(), history.size[rows].tolist(), strict=True)
    alive = {address: (-(-size // 512) * 512, size, -1, False) for address, size in pairs}
    made = set(history.address[history.action == Action.ALLOC].tolist())
    for segment in history.segments:
        for block in segment.blocks:
            if block.state.startswith("active") and block.address not in made:
                alive[block.address] = (block.size, block.requested, block.stack, True)
    return alive


def _segments_before(history: History) -> dict[int, Segment]:
    """Return the segments that no entry created, by address."""
    segments: dict[int, Segment] = {}
    taken: set[int] = set()
    for row in np.flatnonzero(np.isin(history.action, (*TAKEN, *GIVEN_BACK))).tolist():
        action, address, size = int(history.action[row]), int(history.address[row]), int(history.size[row])
        if action in TAKEN:
            taken.add(address)
        elif address not in taken and address not in segments:
            segments[address] = Segment(
                address=address,
                size=size,
                stream=int(history.stream[row]),
                is_large=size != 2 * MIB,
                is_expandable=action == Action.SEGMENT_UNMAP,
                pool=0,
                blocks=(),
            )
    for segment in history.segments:
        if segment.address not in taken and segment.address not in segments:
            segments[segment.address] = segment
    return segments
