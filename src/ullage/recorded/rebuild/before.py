"""What was there before recording began: blocks freed later or there at the end without an allocation; segments."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ullage.base.units import GIB
from ullage.recorded.history import PENDING, Action, History, Segment
from ullage.recorded.program import UNMAPPED_KEY, Column, StartSegment, is_one_of
from ullage.recorded.rebuild.life import GIVEN_BACK, TAKEN, BlockLives
from ullage.recorded.rebuild.ranges import Ranges
from ullage.recorded.rebuild.segment_life import SegmentLives
from ullage.recorded.settings import LARGEST_SMALL_BYTES, SMALL_SEGMENT_BYTES, Settings

_NEAR_BYTES: Final = 128 * GIB
"""The distance from which on two mapped stretches count as parts of different expandable segments: a segment has the
addresses of 9/8 of its card's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrecorded:
    """What a history does not say, as it is assumed: nothing by default, or what brings a replay closer to it."""

    block_bytes: Mapping[int, int] = field(default_factory=dict)
    """Sizes of blocks from before recording began, by address, where a rest was not split off."""
    beyond_room_bytes: int = 0
    """The memory that the card has beyond the room: contexts and other processes. An expandable segment takes addresses
    for 9/8 of the whole card, and of free blocks that can grow the allocator prefers the one that can grow least."""
    oom_pool: int = 0
    """The private pool in which requests failed; 0: the default pool."""
    pools: Mapping[int, int] = field(default_factory=dict)
    """The private pools of segments that were given back, by their number among the segments' lives."""
    emptied: Mapping[int, bool] = field(default_factory=dict)
    """Whether the program itself gave back the cache before an entry that allocates, or the allocator for lack of room;
    where nothing is assumed, it was the allocator if room was needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """The segments and blocks that were there when recording began; their keys count from 0."""

    segments: tuple[StartSegment, ...]
    key_of_address: Mapping[int, int]
    stacks: tuple[int, ...]
    requested: tuple[int, ...]
    lives: SegmentLives
    """All segments of the recording, those that were there first."""
    pending: tuple[int, ...]
    """Keys of blocks that had been freed by then and waited for other streams."""

    @classmethod
    def of(cls, history: History, lives: BlockLives, settings: Settings, unrecorded: Unrecorded) -> "Before":
        """Find them, with what is assumed."""
        block_bytes = unrecorded.block_bytes
        alive = _alive_before(history, lives, settings)
        for address in block_bytes.keys() & alive.keys():
            alive[address] = replace(alive[address], size=block_bytes[address], is_exact=True)
        layout = _StartLayout(alive=alive, holes=_Holes(history), settings=settings)
        there = list(_by_reservation(reserved_before(history, settings)))
        segment_lives = SegmentLives.of(history, there, settings.large_segment_bytes, unrecorded.pools)
        there = list(_with_pools(there, segment_lives))
        segments = [
            layout.segment(stretches, begin)
            for stretches, begin in zip(there, _beginnings(history, there, segment_lives, settings), strict=True)
        ]
        return cls(
            segments=tuple(segments),
            key_of_address=layout.keys,
            stacks=tuple(layout.stacks),
            requested=tuple(layout.requested),
            lives=segment_lives,
            pending=tuple(key for address, key in layout.keys.items() if alive[address].is_pending),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _AliveBlock:
    """A block that no entry allocated."""

    size: int
    requested: int
    stack: int
    freed_row: int
    """The entry from which on its place is free again; the history's length where it is never freed."""
    is_pending: bool
    """Whether it had been freed when recording began, and waited for other streams."""
    is_exact: bool
    """Whether `size` is the block's own, from the final state; an entry that frees a block says what was asked for."""


def _alive_before(history: History, lives: BlockLives, settings: Settings) -> dict[int, _AliveBlock]:
    """Return the blocks that no entry allocated, by address."""
    rows = lives.freed_unseen()
    ends = lives.reusable_from(len(history))[rows]
    # Files before 2023 have one entry for a free; in others a free that only ends was asked for before.
    has_requests = (history.action == Action.FREE_REQUESTED).any()
    waited = has_requests & (history.action[rows] == Action.FREE_COMPLETED)
    columns = (history.address[rows], history.size[rows], ends, waited)
    alive = {
        address: _AliveBlock(
            size=settings.rounded_bytes(size),
            requested=size,
            stack=-1,
            freed_row=end,
            is_pending=is_pending,
            is_exact=False,
        )
        for address, size, end, is_pending in zip(*(column.tolist() for column in columns), strict=True)
    }
    active = [block for segment in history.segments for block in segment.blocks if block.state.startswith("active")]
    addresses = np.array([block.address for block in active], np.int64)
    made = lives.are_allocated(addresses)
    for block in (each for each, was_made in zip(active, made, strict=True) if not was_made):
        is_freed_later = block.address in alive
        alive[block.address] = _AliveBlock(
            size=block.size,
            requested=block.requested,
            stack=block.stack,
            freed_row=len(history),
            is_pending=block.state in PENDING and not is_freed_later,
            is_exact=True,
        )
    return alive


def _by_reservation(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Yield segments in order, one by one; stretches of one expandable segment together."""
    together: list[Segment] = []
    for segment in segments:
        if together and not _is_same(together, segment):
            yield together
            together = []
        last = together[-1] if together else None
        if last is not None and last.address + last.size == segment.address:
            together[-1] = replace(last, size=last.size + segment.size)
        else:
            together.append(segment)
    if together:
        yield together


def _with_pools(there: list[list[Segment]], lives: SegmentLives) -> Iterator[list[Segment]]:
    """Yield each segment with the private pool that its life has."""
    for stretches, number in zip(there, _numbers_at_begin(there, lives), strict=True):
        pool = lives.lives[number].pool if number >= 0 else stretches[0].pool
        is_so = all(stretch.pool == pool for stretch in stretches)
        yield stretches if number < 0 or is_so else [replace(stretch, pool=pool) for stretch in stretches]


def _numbers_at_begin(there: list[list[Segment]], lives: SegmentLives) -> list[int]:
    """Return the number of the life that each segment has when recording begins, or -1."""
    starts = np.array([stretches[0].address for stretches in there], np.int64)
    return list(lives.at(starts, np.full(len(starts), -1)).tolist())


def _is_same(stretches: list[Segment], behind: Segment) -> bool:
    """Tell whether a stretch of memory belongs to the same reservation of addresses as those before it."""
    first = stretches[0]
    return (
        behind.is_expandable
        and (first.is_expandable, first.stream, first.is_large, first.pool)
        == (True, behind.stream, behind.is_large, behind.pool)
        and behind.address - first.address < _NEAR_BYTES
    )


def _beginnings(history: History, there: list[list[Segment]], lives: SegmentLives, settings: Settings) -> Iterator[int]:
    """Yield where the addresses of each segment begin: an expandable one may have given back its first pages.

    Pages that are mapped later in front of it, on its stream and for its kind of blocks, are its own, until it has
    given back its last one: two segments of one card are farther apart than what the card can hold, and so than what
    was ever reserved. A segment is whole pages from its beginning on.
    """
    mapped = np.flatnonzero(history.action == Action.SEGMENT_MAP)
    addresses, streams = history.address[mapped], history.stream[mapped]
    are_large = history.size[mapped] % settings.large_segment_bytes == 0
    sign = is_one_of(history.action, TAKEN).astype(np.int64) - is_one_of(history.action, GIVEN_BACK)
    most = sum(each.size for stretches in there for each in stretches) + int(
        np.cumsum(sign * history.size).max(initial=0)
    )
    end = 0
    for stretches, number in zip(there, _numbers_at_begin(there, lives), strict=True):
        first, last = stretches[0], stretches[-1]
        if not first.is_expandable:
            yield first.address
            end = last.address + last.size
            continue
        lowest = max(end, first.address - most)
        before = (addresses >= lowest) & (addresses < first.address)
        before &= (streams == first.stream) & (are_large == first.is_large)
        page = settings.large_segment_bytes if first.is_large else SMALL_SEGMENT_BYTES
        before &= (first.address - addresses) % page == 0
        if number >= 0 and lives.lives[number].died >= 0:
            before &= mapped < lives.lives[number].died
        yield int(addresses[before].min()) if before.any() else first.address
        end = last.address + last.size


@dataclass(slots=True)
class _Holes:
    """The allocations of a history, by address: the first one behind a block shows where that block ends."""

    history: History
    _sorted: tuple[Column, Column] | None = None
    """Addresses and rows, once somebody asked: most recordings have no such block."""

    def _by_address(self) -> tuple[Column, Column]:
        if self._sorted is None:
            made = np.flatnonzero(self.history.action == Action.ALLOC)
            rows = made[np.argsort(self.history.address[made], kind="stable")]
            self._sorted = self.history.address[rows], rows
        return self._sorted

    def first_in(self, start: int, stop: int, before_row: int) -> int | None:
        """Return the address of the first allocation between two addresses, if there is one before an entry.

        The allocator puts it at the beginning of the one free block that lies there.
        """
        addresses, rows = self._by_address()
        low, high = np.searchsorted(addresses, (start, stop)).tolist()
        if low == high:
            return None
        first = low + int(np.argmin(rows[low:high]))
        return int(addresses[first]) if rows[first] < before_row else None


@dataclass(slots=True, kw_only=True)
class _StartLayout:
    """The segments that were there, written one after the other, and the keys of their blocks."""

    alive: Mapping[int, _AliveBlock]
    holes: _Holes
    settings: Settings
    keys: dict[int, int] = field(default_factory=dict)
    stacks: list[int] = field(default_factory=list)
    requested: list[int] = field(default_factory=list)
    _addresses: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._addresses = sorted(self.alive)

    def segment(self, stretches: list[Segment], begin: int) -> StartSegment:
        """Return one segment, of its mapped stretches in order, with all of its blocks, from an address on."""
        first = stretches[0]
        blocks: list[tuple[int, int, int]] = []
        at = begin
        for stretch in stretches:
            if stretch.address > at:
                blocks.append((stretch.address - at, 0, UNMAPPED_KEY))
            blocks.extend(self._blocks(stretch))
            at = stretch.address + stretch.size
        return StartSegment(
            address=begin,
            stream=first.stream,
            is_small=not first.is_large,
            is_expandable=first.is_expandable,
            pool=first.pool,
            blocks=tuple(blocks),
        )

    def _blocks(self, segment: Segment) -> Iterator[tuple[int, int, int]]:
        at, stop = segment.address, segment.address + segment.size
        inside = self._addresses[bisect_left(self._addresses, at) : bisect_right(self._addresses, stop - 1)]
        for address, following in zip(inside, [*inside[1:], stop], strict=False):
            block = self.alive[address]
            end = min(address + block.size, stop)
            if end <= max(address, at):
                continue
            if segment.is_large and not segment.is_expandable and not block.is_exact and end < following:
                end = self._end_of(block, end, following)
            if address > at:
                yield address - at, 0, -1
            self.keys[address] = len(self.stacks)
            yield end - address, block.requested, len(self.stacks)
            self.stacks.append(block.stack)
            self.requested.append(block.requested)
            at = end
        if at < stop:
            yield stop - at, 0, -1

    def _end_of(self, block: _AliveBlock, end: int, following: int) -> int:
        """Return where a block ends of which only the requested size is known: a rest may not have been split off.

        What looks like a small hole behind such a block belongs to it.
        """
        if following - end <= LARGEST_SMALL_BYTES or block.size >= self.settings.max_split_bytes:
            return following  # blocks above max_split_size_mb are never split
        behind = self.holes.first_in(end, following, block.freed_row)
        return behind if behind is not None and behind - end <= LARGEST_SMALL_BYTES else end


def reserved_before(history: History, settings: Settings) -> list[Segment]:
    """Return the segments that no entry of a history created, by address, without their blocks.

    What is there at the end is taken back event by event. Ranges of addresses are followed, not their beginnings: an
    expandable segment gives pages back in its middle, and a snapshot then shows its pieces as segments of their own.

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
