"""Finds when segments were created and freed, and which private pool each allocation used."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from ullage.recorded.history import Action, History, Segment
from ullage.recorded.program import Column, is_one_of
from ullage.recorded.rebuild.life import GIVEN_BACK, REQUESTS
from ullage.recorded.settings import SMALL_SEGMENT_BYTES

NONE: Final = -1
"""A marker in arrays of trace entries. It means "no trace entry"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLife:
    """The lifetime and the address range of a segment. The range of an expandable segment includes all addresses that
    ever had memory.
    """

    begin: int
    end: int
    stream: int
    is_large: bool
    is_expandable: bool
    born: int
    """The trace entry that created the segment, or -1 if it is older than the recording."""
    died: int
    """The trace entry that freed the segment, or -1 if it still exists at the end."""
    pool: int = 0
    """The ID of the segment's private pool. 0 is the default pool."""
    pool_is_told: bool = False
    """Whether the recording contains the segment's pool."""

    def told(self, pool: int) -> "SegmentLife":
        """Return a copy with the recorded private pool."""
        # `dataclasses.replace` is slow, so the fields are copied one by one.
        return SegmentLife(
            begin=self.begin,
            end=self.end,
            stream=self.stream,
            is_large=self.is_large,
            is_expandable=self.is_expandable,
            born=self.born,
            died=self.died,
            pool=pool,
            pool_is_told=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLives:
    """When each segment was created and freed, including segments from before the recording."""

    lives: tuple[SegmentLife, ...]
    finder: "LifeFinder" = field(repr=False, compare=False)

    @classmethod
    def of(
        cls,
        history: History,
        before: Sequence[Sequence[Segment]],
        large_page: int,
        pools: Mapping[int, int],
    ) -> "SegmentLives":
        """Find when each segment of a recording was created and freed.

        Args:
            history: the recording of one device.
            before: the segments that existed when recording began, each as a list of its mapped ranges.
            large_page: bytes of a page of an expandable segment for large blocks.
            pools: assumed private pools by index of the lifetime, for segments whose pool is not recorded.
        """
        found = [*_plain(history, before), *_expandable(history, before, large_page)]
        starts = [segment.address for segment in history.segments]
        told = [_with_pool(life, history, starts) for life in found]
        names = ("begin", "end", "born", "died")
        columns = (np.array([getattr(life, name) for life in told], np.int64) for name in names)
        return cls(
            lives=tuple(
                life if life.pool_is_told or number not in pools else replace(life, pool=pools[number])
                for number, life in enumerate(told)
            ),
            finder=LifeFinder(*columns),
        )

    def at(self, address: Column, row: Column) -> Column:
        """Return the index of the segment that contains each address at the given trace entry, or -1. Entry -1 means
        the start.
        """
        return self.finder.at(address, row)

    def pools(self) -> Column:
        """Return the private pool of each segment as an array."""
        return np.array([life.pool for life in self.lives], np.int64)


class LifeFinder:
    """Finds the segment that contained an address at a given time."""

    def __init__(self, begin: Column, end: Column, born: Column, died: Column) -> None:
        self._begin, self._end, self._born, self._died = begin, end, born, died
        self._cuts = np.unique(np.concatenate([begin, end]))
        places = (np.searchsorted(self._cuts, begin).tolist(), np.searchsorted(self._cuts, end).tolist(), born.tolist())
        pieces = [
            (piece, since, number)
            for number, (first, last, since) in enumerate(zip(*places, strict=True))
            for piece in range(first, last)
        ]
        self._piece, self._since, self._number = np.array(sorted(pieces), np.int64).reshape(-1, 3).T

    def at(self, address: Column, row: Column) -> Column:
        """Return the index of the segment that contains each address at the given trace entry, or -1. Entry -1 means
        the start.
        """
        if not len(self._begin) or not len(address):
            return np.full(len(address), NONE, np.int64)
        span = int(max(row.max(initial=0), self._since.max())) + 2
        wanted = (np.searchsorted(self._cuts, address, side="right") - 1) * span + row + 1
        at = np.searchsorted(self._piece * span + self._since + 1, wanted, side="right") - 1
        owner = np.where(at >= 0, self._number[at], NONE)
        lies_in = (owner >= 0) & (self._begin[owner] <= address) & (address < self._end[owner])
        is_there = (self._born[owner] <= row) & ((self._died[owner] < 0) | (self._died[owner] > row))
        return np.where(lies_in & is_there, owner, NONE)


def _from_before(stretches: Sequence[Segment], *, died: int) -> SegmentLife:
    first, last = stretches[0], stretches[-1]
    return SegmentLife(
        begin=first.address,
        end=last.address + last.size,
        stream=first.stream,
        is_large=first.is_large,
        is_expandable=first.is_expandable,
        born=NONE,
        died=died,
        pool=first.pool,
    )


def _plain(history: History, before: Sequence[Sequence[Segment]]) -> Iterator[SegmentLife]:
    ends: dict[int, list[int]] = {}
    for row in np.flatnonzero(history.action == Action.SEGMENT_FREE).tolist():
        ends.setdefault(int(history.address[row]), []).append(row)

    def end_behind(row: int, address: int) -> int:
        there = ends.get(address, [])
        return next(iter(there[bisect_right(there, row) :][:1]), NONE)

    for stretches in before:
        if not stretches[0].is_expandable:
            yield _from_before(stretches, died=end_behind(NONE, stretches[0].address))
    for row in np.flatnonzero(history.action == Action.SEGMENT_ALLOC).tolist():
        address, size = int(history.address[row]), int(history.size[row])
        yield SegmentLife(
            begin=address,
            end=address + size,
            stream=int(history.stream[row]),
            is_large=size > SMALL_SEGMENT_BYTES,
            is_expandable=False,
            born=row,
            died=end_behind(row, address),
        )


@dataclass(slots=True)
class _Open:
    life: SegmentLife
    mapped_bytes: int

    def grown(self, begin: int, end: int) -> None:
        self.life = replace(self.life, begin=min(self.life.begin, begin), end=max(self.life.end, end))


def _expandable(history: History, before: Sequence[Sequence[Segment]], large_page: int) -> Iterator[SegmentLife]:
    there = [stretches for stretches in before if stretches[0].is_expandable]
    rows = np.flatnonzero(is_one_of(history.action, (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)))
    addresses, sizes = history.address[rows].tolist(), history.size[rows].tolist()
    spans = _spans(
        [
            *((stretches[0].address, stretches[-1].address + stretches[-1].size) for stretches in there),
            *((address, address + size) for address, size in zip(addresses, sizes, strict=True)),
        ]
    )
    held: dict[int, _Open] = {}
    for stretches in there:
        life = _from_before(stretches, died=NONE)
        held[bisect_right(spans, life.begin)] = _Open(life, sum(stretch.size for stretch in stretches))
    is_mapped = (history.action[rows] == Action.SEGMENT_MAP).tolist()
    for row, address, size, takes in zip(rows.tolist(), addresses, sizes, is_mapped, strict=True):
        span = bisect_right(spans, address)
        if takes:
            if span not in held:
                life = SegmentLife(
                    begin=address,
                    end=address + size,
                    stream=int(history.stream[row]),
                    is_large=size % large_page == 0,
                    is_expandable=True,
                    born=row,
                    died=NONE,
                )
                held[span] = _Open(life, 0)
            held[span].mapped_bytes += size
            held[span].grown(address, address + size)
        elif span in held:
            held[span].mapped_bytes -= size
            if held[span].mapped_bytes <= 0:
                yield replace(held.pop(span).life, died=row)
    yield from (each.life for each in held.values())


# Different segments are never adjacent in practice, because no GPU has enough memory to map a whole address
# reservation.
def _spans(ranges: Iterable[tuple[int, int]]) -> list[int]:
    found: list[int] = []
    stop = NONE
    for begin, end in sorted(ranges):
        if begin > stop:
            found.append(begin)
        stop = max(stop, end)
    return found


# If the trace entries do not record a pool, it is the pool of the final segment at the same address.
def _with_pool(life: SegmentLife, history: History, starts: Sequence[int]) -> SegmentLife:
    labels = history.labels.pool
    if len(labels):
        row = life.born if life.born >= 0 else life.died
        return life.told(int(labels[row]) if row >= 0 else life.pool)
    if life.died >= 0:
        return life
    at = bisect_right(starts, life.end - 1) - 1
    last = history.segments[at] if at >= 0 else None
    if last is None or last.address + last.size <= life.begin:
        return life
    return life.told(last.pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """A period in which all allocations went to the same private pool."""

    pool: int
    first_row: int
    last_row: int


def pool_of_rows(history: History, lives: SegmentLives, oom_pool: int = 0) -> Column:
    """Return the private pool of every trace entry. 0 is the default pool."""
    if len(history.labels.pool):
        return history.labels.pool
    pools = np.zeros(len(history), np.int64)
    of_life = np.append(lives.pools(), 0)
    if of_life.any():
        made = np.flatnonzero(history.action == Action.ALLOC)
        pools[made] = of_life[lives.at(history.address[made], made)]
        back = np.flatnonzero(is_one_of(history.action, GIVEN_BACK))
        pools[back] = of_life[lives.at(history.address[back], back - 1)]
    pools[history.action == Action.OOM] = oom_pool
    return pools


def pool_uses(history: History, pools: Column) -> list[PoolUse]:
    """Return the periods in which allocations went to a private pool, in order."""
    made = np.flatnonzero(is_one_of(history.action, REQUESTS))
    of = pools[made]
    is_edge = np.diff(of, prepend=-1, append=-1) != 0  # Pool numbers are never negative.
    is_edge[np.searchsorted(made, np.flatnonzero(is_one_of(history.action, GIVEN_BACK)))] = True
    edges = np.flatnonzero(is_edge).tolist()
    return [
        PoolUse(pool=int(of[start]), first_row=int(made[start]), last_row=int(made[end - 1]))
        for start, end in pairwise(edges)
        if of[start]
    ]


def given_up(history: History, pools: Column) -> dict[int, int]:
    """Return, for each private pool that is no longer used, the trace entry that freed its memory."""
    private = np.flatnonzero(pools)
    used = private[is_one_of(history.action[private], REQUESTS)][::-1]
    numbers, latest = np.unique(pools[used], return_index=True)
    last_use = dict(zip(numbers.tolist(), used[latest].tolist(), strict=True))
    back = private[is_one_of(history.action[private], GIVEN_BACK)]
    found: dict[int, int] = {}
    for row, pool in zip(back.tolist(), pools[back].tolist(), strict=True):
        if row > last_use.get(pool, -1):
            found.setdefault(pool, row)
    return found
