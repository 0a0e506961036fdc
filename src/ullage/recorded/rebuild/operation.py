"""Reconstructs the allocator operations of a recorded run, and the driver calls that each one made."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ullage.recorded.history import Action, History
from ullage.recorded.program import Column, Op, is_one_of
from ullage.recorded.rebuild.before import Before, Unrecorded
from ullage.recorded.rebuild.life import GIVEN_BACK, REQUESTS, TAKEN, BlockLives
from ullage.recorded.rebuild.segment_life import given_up, pool_of_rows, pool_uses
from ullage.recorded.settings import DRIVER_PAGE_BYTES

UNBOUNDED_BYTES: Final = 1 << 60
"""The memory capacity in bytes that is assumed if the real one is unknown."""
_FIRST, _MAIN, _AFTER, _LAST = 1, 4, 5, 6  # the order of the operations that one entry produces
_BEFORE = -1  # the row of operations that create the initial state
_OTHER_STREAM: Final = (
    0x7F0000000000  # the base of invented stream handles, for the streams that still use a freed block
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The reconstructed operations, each with its trace entry and its driver calls."""

    op: Column
    key: Column
    size: Column
    stream: Column
    row: Column
    calls: Mapping[int, tuple[tuple[str, int], ...]]


def _position_of(row: Any, place: Any) -> Any:
    return row * (_LAST + 1) + place


@dataclass(slots=True)
class _Operations:
    pieces: list[list[Column]] = field(default_factory=list)

    def add(self, row: Any, place: int, op: Op, *, key: Any = 0, size: Any = 0, stream: Any = 0) -> None:
        # A value that is the same for all rows uses no memory here: it is a view of one number.
        columns = np.broadcast_arrays(np.atleast_1d(row), place, int(op), key, size, stream)
        self.pieces.append(list(columns))

    def sorted(self) -> list[Column]:
        if not self.pieces:
            return [np.zeros(0, np.int64)] * 6
        rows, places, *others = zip(*self.pieces, strict=True)
        # Each piece is already sorted, which a stable sort by a single column makes use of.
        positions = np.concatenate([_position_of(*each) for each in zip(rows, places, strict=True)])
        order = np.argsort(positions, kind="stable")
        return [positions[order], *(np.concatenate(column, dtype=np.int64)[order] for column in (rows, *others))]


def write_operations(
    history: History, lives: BlockLives, before: Before, held: Column, room: int, unrecorded: Unrecorded
) -> Written:
    """Return the allocator operations that a recording is converted to.

    Args:
        history: the recording of one device.
        lives: the recording's frees, matched to allocations.
        before: the state when recording began.
        held: the bytes that the driver had given after each entry.
        room: the capacity in bytes.
        unrecorded: the assumptions about facts that are not recorded.
    """
    operations = _Operations()
    made = np.flatnonzero(is_one_of(history.action, REQUESTS))
    key_of_row = np.full(len(history), -1, np.int64)
    key_of_row[made] = len(before.requested) + np.arange(len(made))
    operations.add(made, _MAIN, Op.ALLOCATE, key=key_of_row[made], size=history.size[made], stream=history.stream[made])
    # The program received no memory from a request that failed: if the request succeeds in a replay, its block is freed
    # at once.
    failed = np.flatnonzero(history.action == Action.OOM)
    operations.add(failed, _AFTER, Op.FREE, key=key_of_row[failed])
    _write_frees(history, lives, before, key_of_row, operations)
    _write_pools(history, before, pool_of_rows(history, before.lives, unrecorded.oom_pool), operations)
    calls = _write_releases(history, held, room, unrecorded.emptied, operations)
    order, row, op, key, size, stream = operations.sorted()
    return Written(
        op=op,
        key=key,
        size=size,
        stream=stream,
        row=row,
        calls={int(np.searchsorted(order, _position_of(*at))): tuple(driven) for at, driven in calls.items()},
    )


def _write_frees(
    history: History, lives: BlockLives, before: Before, key_of_row: Column, operations: _Operations
) -> None:
    key = np.where(lives.previous == Action.ALLOC, key_of_row[lives.previous_row], -1)
    first = np.flatnonzero((lives.previous < 0) & (lives.action != Action.ALLOC))
    known = before.key_of_address
    key[first] = [known.get(address, -1) for address in history.address[lives.row[first]].tolist()]
    _write_pending(lives, before, key, first, operations)
    following = np.minimum(lives.row + 1, max(0, len(history) - 1))
    at_once = (
        (lives.row < len(history) - 1)
        & (history.action[following] == Action.FREE_COMPLETED)
        & (history.address[following] == history.address[lives.row])
    )
    is_request, is_end = lives.action == Action.FREE_REQUESTED, lives.action == Action.FREE_COMPLETED
    # Files from before 2023 have one entry for a free.
    now = (key >= 0) & (is_end | (is_request & at_once))
    operations.add(lives.row[now], _MAIN, Op.FREE, key=key[now])
    waits = (key >= 0) & is_request & ~at_once
    ends = is_end & np.concatenate([np.zeros(min(1, len(waits)), bool), waits[:-1]]) & (lives.previous >= 0)
    _write_waits(lives, key, waits, ends, operations)


def _write_pending(lives: BlockLives, before: Before, key: Column, first: Column, operations: _Operations) -> None:
    stream_of_key = {pending: _OTHER_STREAM - 1 - index for index, pending in enumerate(before.pending)}
    for pending, stream in stream_of_key.items():
        operations.add(_BEFORE, _MAIN - 2, Op.HOLD, stream=stream)
        operations.add(_BEFORE, _MAIN - 1, Op.RECORD_STREAM, key=pending, stream=stream)
        operations.add(_BEFORE, _MAIN, Op.FREE, key=pending)
    for index in first.tolist():
        if int(key[index]) in stream_of_key:
            operations.add(int(lives.row[index]), _MAIN, Op.COMPLETE, stream=stream_of_key[int(key[index])])
            key[index] = -1


# There are only as many such streams as freed blocks wait for other streams at the same time.
def _write_waits(lives: BlockLives, key: Column, waits: Any, ends: Any, operations: _Operations) -> None:
    stream_of_request: dict[int, int] = {}
    idle: list[int] = []
    streams = 0
    both = np.flatnonzero(waits | ends)
    for index in both[np.argsort(lives.row[both])].tolist():
        row = int(lives.row[index])
        if ends[index]:
            stream = stream_of_request.pop(int(lives.previous_row[index]))
            operations.add(row, _MAIN, Op.COMPLETE, stream=stream)
            idle.append(stream)
            continue
        if not idle:
            streams += 1
            idle.append(_OTHER_STREAM + streams)
            operations.add(row, _MAIN - 2, Op.HOLD, stream=idle[-1])
        stream_of_request[row] = idle.pop()
        operations.add(row, _MAIN - 1, Op.RECORD_STREAM, key=key[index], stream=stream_of_request[row])
        operations.add(row, _MAIN, Op.FREE, key=key[index])


def _write_pools(history: History, before: Before, pools: Column, operations: _Operations) -> None:
    users = Counter({segment.pool: 1 for segment in before.segments if segment.pool})
    for use in pool_uses(history, pools):
        operations.add(use.first_row, _MAIN - 1, Op.BEGIN_POOL, key=use.pool, size=-1)
        operations.add(use.last_row, _AFTER, Op.END_POOL, key=use.pool)
        users[use.pool] += 2  # Each call of beginAllocateToPool counts two users.
    for pool, row in given_up(history, pools).items():
        for _ in range(users[pool]):
            operations.add(row, _FIRST - 1, Op.RELEASE_POOL, key=pool)  # before the operation that frees its memory


# The allocator itself freed all segments that no `empty_cache` call freed, for lack of memory.
def _write_releases(
    history: History, held: Column, room: int, emptied: Mapping[int, bool], operations: _Operations
) -> dict[tuple[int, int], list[tuple[str, int]]]:
    made = np.flatnonzero(is_one_of(history.action, REQUESTS))
    moved = np.flatnonzero(is_one_of(history.action, (*TAKEN, *GIVEN_BACK)))
    calls: dict[tuple[int, int], list[tuple[str, int]]] = {}
    by_request: dict[int, list[tuple[str, int]]] = {}
    first_row: dict[int, int] = {}
    is_taken, sizes = is_one_of(history.action[moved], TAKEN).tolist(), history.size[moved].tolist()
    behind = _request_behind(history, made, moved).tolist()
    for row, request, takes, size in zip(moved.tolist(), behind, is_taken, sizes, strict=True):
        call = "take" if takes else "give", size
        if request >= 0:
            by_request.setdefault(request, []).append(call)
            continue
        if request not in first_row:
            first_row[request] = row
            operations.add(row, _FIRST, Op.EMPTY_CACHE)
        calls.setdefault((first_row[request], _FIRST), []).append(call)
    for row, driven in by_request.items():
        split = _given_by_program(driven, int(history.size[row]), int(held[row]), room, is_own=emptied.get(row))
        if split:
            operations.add(row, _FIRST, Op.EMPTY_CACHE)
            calls[row, _FIRST] = driven[:split]
        if driven[split:]:
            calls[row, _MAIN] = driven[split:]
    return calls


# If a block is freed before the next request, the call came from the program (`empty_cache`). The result is then
# negative, and it is equal for calls without a free in between.
def _request_behind(history: History, made: Column, moved: Column) -> Column:
    # Files from before 2023 have one entry for a free.
    has_requests = (history.action == Action.FREE_REQUESTED).any()
    freed = np.flatnonzero(history.action == (Action.FREE_REQUESTED if has_requests else Action.FREE_COMPLETED))
    never = len(history)
    next_request = np.append(made, never)[np.searchsorted(made, moved)]
    next_free = np.searchsorted(freed, moved)
    is_own = np.append(freed, never)[next_free] <= next_request
    return np.where(is_own, -1 - next_free, next_request)


def whole_pages(size: Any) -> Any:
    """Return a number of bytes, rounded up to whole driver pages."""
    return -(-size // DRIVER_PAGE_BYTES) * DRIVER_PAGE_BYTES


# The result is 0 if the allocator needed the memory for the request.
def _given_by_program(
    driven: Sequence[tuple[str, int]], size: int, held: int, room: int, *, is_own: bool | None
) -> int:
    given = [index for index, (what, _) in enumerate(driven) if what == "give"]
    if not given or is_own is False:
        return 0
    if is_own:
        return given[-1] + 1
    taken = sum(whole_pages(size) for what, size in driven if what == "take") or size
    before = held + sum(whole_pages(size) if what == "give" else -whole_pages(size) for what, size in driven)
    return 0 if before + taken > room else given[-1] + 1
