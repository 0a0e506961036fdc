"""Combine the memory requests of single steps into an epoch, and replay it in a simulated allocator."""

# An epoch may be too long for host memory. It is replayed in pieces, and each piece begins with the blocks and segments
# that the previous piece left.

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ullage.predicting.epoch.requests import Ints, RequestRows, Template
from ullage.recorded.allocator.replay import BlockColumns, Replay, ReplayDevice, State, replay
from ullage.recorded.program import UNMAPPED_KEY, Op, Program, StartSegment
from ullage.recorded.settings import Settings

PIECE_OPERATIONS: Final = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochLevels:
    """The allocated and reserved memory during each step of an epoch, in bytes."""

    allocated_bytes: Ints
    reserved_bytes: Ints
    start_allocated_bytes: Ints
    """The allocated bytes at the beginning of each step of the epoch."""
    lost_frees: int = 0
    """The number of recorded frees whose memory block was not found. If it is above 0, the result may be wrong."""
    ran_out_at: int | None = None
    """The step in which GPU memory runs out, or None if it does not."""
    is_whole: bool
    """Whether all steps of the epoch were replayed before the deadline."""
    ties: int = 0
    """The number of times that the allocator chose between equally large free blocks by address."""


def levels_of_run(requests: RequestRows, settings: Settings, device: ReplayDevice) -> Replay:
    """Replay the memory requests of the run, and return its allocated and reserved memory."""
    return replay(_program(requests.op, requests.key, requests.size, requests.stream), settings, device)


def _program(op: Ints, key: Ints, size: Ints, stream: Ints, start: tuple[StartSegment, ...] = ()) -> Program:
    op, key, size, stream = (np.ascontiguousarray(column, np.int64) for column in (op, key, size, stream))
    return Program(op=op, key=key, size=size, stream=stream, start=start)


@dataclass(slots=True, kw_only=True)
class Composer:
    """Replays the memory requests of all steps of an epoch in a simulation of PyTorch's allocator."""

    settings: Settings
    device: ReplayDevice
    piece_operations: int = PIECE_OPERATIONS
    # Block numbers count over the whole epoch.
    _next: int = 0
    _survivors: list[Ints] = field(default_factory=list)
    _lost: int = 0
    _ties: int = 0
    _start: tuple[StartSegment, ...] = ()
    # The memory blocks that are alive at the beginning of a piece of the epoch.
    _start_keys: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    _first: int = 0
    _there: int = 0

    def levels(self, before: RequestRows, steps: Iterable[Template], *, deadline: float) -> EpochLevels:
        """Return the allocated and reserved memory during the steps of an epoch.

        Args:
            before: the requests before the first step.
            steps: the steps in the order of the epoch.
            deadline: the time (`time.monotonic`) at which to stop.
        """
        self._next = int(before.key.max(initial=-1)) + 1
        allocated: list[Ints] = []
        reserved: list[Ints] = []
        at_start: list[Ints] = []
        ran_out: int | None = None
        is_whole = True
        for offsets, rows in self._pieces(before, steps):
            done = self._run(rows)
            if done.broken:
                self._lost += 1
                is_whole = False
                break
            whole = len(offsets) - 1
            if done.ran_out:
                whole = int(np.searchsorted(offsets, done.done - 1, side="right")) - 1
                ran_out = sum(map(len, allocated)) + whole
                if whole >= 0:
                    offsets = np.append(offsets[: whole + 1], done.done)
                else:
                    break
            assert done.levels is not None
            columns = (done.levels.allocated_bytes, done.levels.reserved_bytes)
            of = [np.append(column, column[-1:] if len(column) else 0) for column in columns]
            spans = offsets[:-1]
            if len(spans):
                highest = [np.maximum.reduceat(np.append(column, column[-1]), spans) for column in of]
                before_first = np.maximum(spans - 1, 0)
                live_bytes = sum(size for segment in self._start for size, _, key in segment.blocks if key >= 0)
                starts = np.where(spans > 0, of[0][before_first], live_bytes)
                allocated.append(np.maximum(highest[0], starts))
                reserved.append(highest[1])
                at_start.append(starts)
            if ran_out is not None:
                break
            self._carry(done.blocks)
            if time.monotonic() > deadline:
                is_whole = False
                break
        none = np.zeros(0, np.int64)
        return EpochLevels(
            allocated_bytes=np.concatenate([none, *allocated]),
            reserved_bytes=np.concatenate([none, *reserved]),
            start_allocated_bytes=np.concatenate([none, *at_start]),
            lost_frees=self._lost,
            ran_out_at=ran_out,
            is_whole=is_whole,
            ties=self._ties,
        )

    def _pieces(self, before: RequestRows, steps: Iterable[Template]) -> Iterator[tuple[Ints, RequestRows]]:
        rows, offsets, length = [before], [], len(before)
        for step in steps:
            offsets.append(length)
            rows.append(self._requests(step))
            length += len(step.op)
            if length >= self.piece_operations:
                yield np.array([*offsets, length], np.int64), RequestRows.joined(rows)
                rows, offsets, length = [], [], 0
        if offsets:
            yield np.array([*offsets, length], np.int64), RequestRows.joined(rows)

    def _requests(self, step: Template) -> RequestRows:
        key = step.key + self._next
        op = step.op
        if len(step.age):
            key[~step.is_own & (op == int(Op.FREE))] = self._carried(step)
        if (key < 0).any():
            self._lost += int((key < 0).sum())
            op = np.where(key < 0, int(Op.NOTHING), op)
            key = np.maximum(key, 0)
        key[op == int(Op.EMPTY_CACHE)] = 0
        self._survivors.append(step.survivors + self._next)
        self._next += step.births
        return RequestRows(op, key, step.size, step.stream)

    # -1 stands for a block that does not exist.
    def _carried(self, step: Template) -> Ints:
        keys = np.full(len(step.age), -1, np.int64)
        number = len(self._survivors)
        for age in np.unique(step.age).tolist():
            mine = step.age == age
            if age == 0:
                keys[mine] = step.place[mine]
            elif age <= number:
                survivors, places = self._survivors[number - age], step.place[mine]
                is_there = places < len(survivors)
                if is_there.any():
                    keys[mine] = np.where(is_there, survivors[np.minimum(places, len(survivors) - 1)], -1)
        return keys

    # Memory blocks get new numbers from 0. The first numbers are for the blocks that are alive at the start of the
    # piece.
    def _run(self, rows: RequestRows) -> Replay:
        first = int(rows.key[rows.op == int(Op.ALLOCATE)].min(initial=1 << 62))
        there = len(self._start_keys)
        key = rows.key - first + there
        is_old = (rows.key < first) & (rows.op == int(Op.FREE))
        places = np.searchsorted(self._start_keys, rows.key[is_old])
        found = np.zeros(len(places), np.bool_)
        inside = places < there
        found[inside] = self._start_keys[places[inside]] == rows.key[is_old][inside]
        key[is_old] = np.where(found, places, 0)
        op = rows.op
        if not found.all():
            op = op.copy()
            gone = np.flatnonzero(is_old)[~found]
            op[gone] = int(Op.NOTHING)
            self._lost += len(gone)
        key[(op != int(Op.ALLOCATE)) & (op != int(Op.FREE))] = 0
        done = replay(
            _program(op, key, rows.size, rows.stream, self._start),
            self.settings,
            self.device,
            levels=True,
            stop_after_ooms=1,
        )
        self._lost += len(done.skipped_ops)
        self._ties += done.address_ties
        self._first, self._there = first, there
        return done

    def _carry(self, blocks: BlockColumns) -> None:
        key = blocks.key
        number = np.where(key >= self._there, key - self._there + self._first, -1)
        old = (key >= 0) & (key < self._there)
        number[old] = self._start_keys[key[old]]
        held = np.sort(number[number >= 0])
        self._start_keys = held
        own = np.where(number >= 0, np.searchsorted(held, number), -1)
        own = np.where(blocks.state == int(State.UNMAPPED), UNMAPPED_KEY, own)
        self._start = tuple(_segments(blocks, own))


def _segments(blocks: BlockColumns, keys: Ints) -> Iterator[StartSegment]:
    order = np.lexsort((blocks.address, blocks.segment))
    borders = np.flatnonzero(np.diff(blocks.segment[order], prepend=-1))
    for start, end in zip(borders.tolist(), [*borders.tolist()[1:], len(order)], strict=True):
        members = order[start:end]
        first = int(members[0])
        segment = int(blocks.segment[first])
        yield StartSegment(
            address=int(blocks.segment_address[segment]),
            stream=int(blocks.stream[first]),
            is_small=bool(blocks.is_small[first]),
            is_expandable=bool(blocks.segment_is_expandable[segment]),
            pool=int(blocks.pool[first]),
            blocks=tuple((int(blocks.size[at]), int(blocks.requested[at]), int(keys[at])) for at in members.tolist()),
        )
