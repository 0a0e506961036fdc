"""Reconstructs the allocator's segments and blocks at the moment when recording began."""

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

# The smallest distance in bytes between mapped address ranges of different expandable segments. It is large, because an
# expandable segment reserves addresses for 9/8 of its GPU's memory.
_NEAR_BYTES: Final = 128 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrecorded:
    """Assumptions about facts that a recording lacks. ullage uses them if they make a simulation match the recording
    better.
    """

    block_bytes: Mapping[int, int] = field(default_factory=dict)
    """The assumed sizes of blocks from before the recording, by address. They are larger than the requested sizes."""
    beyond_room_bytes: int = 0
    """The GPU memory that the allocator cannot reserve, in bytes. CUDA contexts and other processes use it."""
    oom_pool: int = 0
    """The private pool in which allocations failed. 0 is the default pool."""
    pools: Mapping[int, int] = field(default_factory=dict)
    """The private pools of segments that were freed during the recording."""
    emptied: Mapping[int, bool] = field(default_factory=dict)
    """The reason why the cache was emptied before a trace entry: True for a call of `empty_cache`, False for a lack of
    memory.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """The segments and blocks that existed when recording began. Block IDs start at 0."""

    segments: tuple[StartSegment, ...]
    key_of_address: Mapping[int, int]
    stacks: tuple[int, ...]
    requested: tuple[int, ...]
    lives: SegmentLives
    """The creation and the free of each segment, including segments from before the recording."""
    pending: tuple[int, ...]
    """The IDs of blocks that were freed before the recording, but that other streams still used."""

    @classmethod
    def of(cls, history: History, lives: BlockLives, settings: Settings, unrecorded: Unrecorded) -> "Before":
        """Reconstruct the allocator's state when recording began."""
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
    size: int
    requested: int
    stack: int
    # the length of the history if the block is never freed
    freed_row: int
    is_pending: bool
    # False if only the requested size is known, from a trace entry that frees the block
    is_exact: bool


def _alive_before(history: History, lives: BlockLives, settings: Settings) -> dict[int, _AliveBlock]:
    rows = lives.freed_unseen()
    ends = lives.reusable_from(len(history))[rows]
    # Files from before 2023 have one entry for a free. In newer files, a completed free without a request was requested
    # before recording began.
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
    for stretches, number in zip(there, _numbers_at_begin(there, lives), strict=True):
        pool = lives.lives[number].pool if number >= 0 else stretches[0].pool
        is_so = all(stretch.pool == pool for stretch in stretches)
        yield stretches if number < 0 or is_so else [replace(stretch, pool=pool) for stretch in stretches]


def _numbers_at_begin(there: list[list[Segment]], lives: SegmentLives) -> list[int]:
    starts = np.array([stretches[0].address for stretches in there], np.int64)
    return list(lives.at(starts, np.full(len(starts), -1)).tolist())


def _is_same(stretches: list[Segment], behind: Segment) -> bool:
    first = stretches[0]
    return (
        behind.is_expandable
        and (first.is_expandable, first.stream, first.is_large, first.pool)
        == (True, behind.stream, behind.is_large, behind.pool)
        and behind.address - first.address < _NEAR_BYTES
    )


# Pages that are mapped later below the segment, on the same stream and for the same pool, belong to it until its last
# page is unmapped: two segments on one GPU are farther apart than the GPU's memory size, and so farther apart than all
# reserved memory. A segment consists of whole pages from its start address.
def _beginnings(history: History, there: list[list[Segment]], lives: SegmentLives, settings: Settings) -> Iterator[int]:
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
    history: History
    # Computed when first needed, because few recordings have blocks that need them.
    _sorted: tuple[Column, Column] | None = None

    def _by_address(self) -> tuple[Column, Column]:
        if self._sorted is None:
            made = np.flatnonzero(self.history.action == Action.ALLOC)
            rows = made[np.argsort(self.history.address[made], kind="stable")]
            self._sorted = self.history.address[rows], rows
        return self._sorted

    # The allocator places such an allocation at the beginning of the only free block there.
    def first_in(self, start: int, stop: int, before_row: int) -> int | None:
        addresses, rows = self._by_address()
        low, high = np.searchsorted(addresses, (start, stop)).tolist()
        if low == high:
            return None
        first = low + int(np.argmin(rows[low:high]))
        return int(addresses[first]) if rows[first] < before_row else None


@dataclass(slots=True, kw_only=True)
class _StartLayout:
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

    # A small gap after a block belongs to the block, because the allocator may not have split off the rest.
    def _end_of(self, block: _AliveBlock, end: int, following: int) -> int:
        if following - end <= LARGEST_SMALL_BYTES or block.size >= self.settings.max_split_bytes:
            return following  # Blocks above max_split_size_mb are never split.
        behind = self.holes.first_in(end, following, block.freed_row)
        return behind if behind is not None and behind - end <= LARGEST_SMALL_BYTES else end


def reserved_before(history: History, settings: Settings) -> list[Segment]:
    """Return the segments that existed before the recording, sorted by address, without their blocks.

    Starting with the state at the end, the entries are undone one by one. Ranges of addresses are tracked rather than
    segment starts, because an expandable segment can unmap pages in its middle, and a snapshot then shows its pieces as
    separate segments.

    For an expandable segment, each mapped range is a separate entry; the settings determine the size of its pages.
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
        Segment(  # All fields are written out because a run may have thousands of segments and `replace` is slow.
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


# A freed range of an expandable segment has the same properties as an adjacent range.
def _given_back(ranges: Ranges[Segment], address: int, size: int, stream: int, large_page: int | None) -> Segment:
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
