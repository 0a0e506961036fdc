"""Infers facts that a memory snapshot does not record, such as the allocator version and private pools.

At the first operation at which a replay differs from the recording, possible explanations are tried in turn. An
explanation is kept if the replay with it follows the recording further. There are three kinds: the program emptied the
cache itself although memory was needed; the request, or a segment returned to the driver, belonged to a private pool; a
block from before the recording was larger than its free shows. A trace entry that frees an older block has the
requested size, not the block size: up to 1 MiB may not have been split off
(DeviceCachingAllocator::should_split). The free block that follows is then smaller by that amount. If a replay places a
request in that free block but the recording has it elsewhere, the free block was too small for the request.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Final

import numpy as np

from ullage.explaining.analysis.card import recorded_card
from ullage.explaining.analysis.fidelity import Comparison, compare
from ullage.explaining.analysis.recording import Recording, cut
from ullage.recorded.allocator.replay import Call, ReplayDevice, State, replay
from ullage.recorded.history import Action, History
from ullage.recorded.program import Op, is_one_of
from ullage.recorded.rebuild import UNBOUNDED_BYTES, Rebuilder, Rebuilt, Unrecorded
from ullage.recorded.rebuild.life import GIVEN_BACK, REQUESTS, TAKEN
from ullage.recorded.rebuild.segment_life import SegmentLife, SegmentLives, pool_of_rows
from ullage.recorded.settings import BLOCK_UNIT_BYTES, LARGEST_SMALL_BYTES, SettingsError

# The largest number of replays in one search for unrecorded properties of a run.
_MOST_TRIALS: Final = 300
# A limit on the search for unrecorded properties of a run. All replays of one search together may not have more trace
# entries than this. The search always makes at least one replay.
_MOST_ENTRIES: Final = 2_000_000
# The search tries to explain at most this many recorded returns of memory to the driver. It begins at the first trace
# entry at which the replay differs from the recording, and goes backwards.
_MOST_ENTRIES_BACK: Final = 4
# The largest number of private pools that the search tries for one request or one segment.
_MOST_POOLS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Assumed values of facts that a memory snapshot does not record, such as private pools."""

    semantics: str | None = None
    """The PyTorch version whose allocator is simulated, such as "2.10". None means the default version."""
    unrecorded: Unrecorded = field(default_factory=Unrecorded)
    rebuilder: Rebuilder | None = field(default=None, repr=False, compare=False)
    """The object that reconstructs the list of allocator operations from the recording."""
    recording: Recording | None = field(default=None, repr=False, compare=False)
    """The simulated run that matches the recording most closely."""

    def recording_of(
        self,
        history: History,
        *,
        semantics: str | None = None,
        alloc_conf: str | None = None,
        capacity_bytes: int | None = None,
    ) -> Recording:
        """Return the simulation of a recorded run. An earlier simulation of the same recording is reused."""
        if self.recording is not None and self.recording.history is history and capacity_bytes is None:
            return self.recording
        rebuilt = self.program_of(history, semantics=semantics, alloc_conf=alloc_conf, capacity_bytes=capacity_bytes)
        return Recording.of(history, rebuilt)

    def program_of(
        self,
        history: History,
        *,
        semantics: str | None = None,
        alloc_conf: str | None = None,
        capacity_bytes: int | None = None,
    ) -> Rebuilt:
        """Return the allocator operations of a recorded run. Takes the same keyword arguments as
        `rebuild.program_of`.
        """
        has_it = self.rebuilder is not None and self.rebuilder.history is history
        rebuilder = self.rebuilder if self.rebuilder is not None and has_it else Rebuilder(history)
        return rebuilder.program_of(
            semantics=semantics or self.semantics,
            alloc_conf=alloc_conf,
            capacity_bytes=capacity_bytes,
            unrecorded=self.unrecorded,
        )


def closest(
    history: History,
    *,
    semantics: str | None = None,
    alloc_conf: str | None = None,
    capacity_bytes: int | None = None,
) -> Assumptions:
    """Find the assumptions with which a simulation reproduces the recording most closely.

    Args:
        history: the recording of one device.
        semantics: the allocator version if it is known, from `ullage.recorded.settings.SEMANTICS`.
        alloc_conf: the run's PYTORCH_CUDA_ALLOC_CONF, if the snapshot does not contain it.
        capacity_bytes: the most bytes that the allocator can reserve, for a recording without a failed request.

    Raises:
        SettingsError: `alloc_conf` cannot be parsed.
    """
    is_recorded = bool((history.action == Action.OOM).any())
    is_too_small = recorded_card(history).peak_reserved_bytes > (capacity_bytes or 0)
    room = None if is_recorded or is_too_small else capacity_bytes
    # Replays distinguish allocator versions only by how they choose between equal free blocks. Of several versions that
    # reproduce the recording exactly, the most likely is reported.
    candidates = (semantics,) if semantics is not None else history.release.candidates
    best: tuple[tuple[int, int], Assumptions] | None = None
    rebuilder = Rebuilder(history)
    for version in candidates:
        told = version if semantics is None and version != history.release.usual else None
        search = _AssumptionSearch(
            rebuilder=rebuilder, semantics=semantics or told, alloc_conf=alloc_conf, room_bytes=room
        )
        try:
            nearest = search.nearest()
        except SettingsError:  # an option that this version does not know
            if best is None and version == candidates[-1]:
                raise
            continue
        if best is None or nearest.order < best[0]:
            found = Assumptions(
                semantics=told, unrecorded=nearest.unrecorded, rebuilder=rebuilder, recording=nearest.recording
            )
            best = nearest.order, found
        if (
            nearest.order == (0, 0) or nearest.has_all_places
        ):  # another version's rule for equal blocks could only move blocks away
            break
    assert best is not None
    return best[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guessed:
    order: tuple[int, int]
    unrecorded: Unrecorded
    has_all_places: bool
    recording: Recording


@dataclass(frozen=True, slots=True)
class _ReplayWithGuesses:
    unrecorded: Unrecorded
    recording: Recording
    comparison: Comparison

    @property
    def guessed(self) -> _Guessed:
        fidelity = self.comparison.fidelity
        return _Guessed(
            order=(fidelity.departures, fidelity.displaced),
            unrecorded=self.unrecorded,
            has_all_places=bool(fidelity.placements) and not fidelity.displaced,
            recording=self.recording,
        )

    @property
    def reached(self) -> float:
        first = self.comparison.first_difference
        return float("inf") if first is None else float(self.comparison.rebuilt.row_of_op[first])


@dataclass(slots=True, kw_only=True)
class _AssumptionSearch:
    rebuilder: Rebuilder
    # None means the default version.
    semantics: str | None
    alloc_conf: str | None
    room_bytes: int | None
    trials: int = 0

    @property
    def history(self) -> History:
        return self.rebuilder.history

    # Only one replay is kept in memory while it waits, because each one holds a whole program.
    def nearest(self) -> "_Guessed":
        most = min(_MOST_TRIALS, max(1, _MOST_ENTRIES // max(1, len(self.history))))
        kept: _ReplayWithGuesses | None = self._try(Unrecorded())
        assert kept is not None
        best = kept.guessed
        waiting = [(-kept.reached, 0, kept.unrecorded)]
        tried = {_identity(kept.unrecorded)}
        while waiting and best.order != (0, 0):
            unrecorded = heappop(waiting)[2]
            trial = kept if kept is not None and kept.unrecorded is unrecorded else self._try(unrecorded)
            kept = None
            for guess in self._guesses(trial):
                if self.trials >= most:
                    return best
                if _identity(guess) in tried:
                    continue
                tried.add(_identity(guess))
                found = self._try(guess)
                if found.comparison.first_difference is None:
                    return found.guessed
                # If one block is larger, the request may move to the next free block that has the same fault; if one
                # segment belongs to a
                # private pool, another segment may be returned to the driver in its place. Such assumptions are kept
                # without progress.
                is_one_of_several = (
                    guess.block_bytes != unrecorded.block_bytes or guess.pools.keys() > unrecorded.pools.keys()
                )
                if found.reached > trial.reached or (is_one_of_several and found.reached == trial.reached):
                    best = min(best, found.guessed, key=lambda each: each.order)
                    heappush(waiting, (-found.reached, self.trials, guess))
                    kept = found if kept is None or found.reached > kept.reached else kept
        return best

    def _try(self, unrecorded: Unrecorded) -> _ReplayWithGuesses:
        self.trials += 1
        rebuilt = self.rebuilder.program_of(
            semantics=self.semantics,
            alloc_conf=self.alloc_conf,
            capacity_bytes=self.room_bytes,
            unrecorded=unrecorded,
        )
        recording = Recording.of(self.history, rebuilt)
        done = recording.done if recording.is_of_everything else None
        return _ReplayWithGuesses(unrecorded, recording, compare(self.history, recording.rebuilt, done))

    def _guesses(self, trial: _ReplayWithGuesses) -> Iterator[Unrecorded]:
        comparison, unrecorded = trial.comparison, trial.unrecorded
        op = comparison.first_difference
        assert op is not None
        rebuilt = comparison.rebuilt
        row = int(rebuilt.row_of_op[op])
        yield from self._guesses_of_who_emptied(trial, row)
        if rebuilt.program.op[op] in (Op.EMPTY_CACHE, Op.ALLOCATE):
            yield from self._guesses_of_what_stayed(trial, op)
            yield from self._guesses_of_what_went(trial, op)
        if rebuilt.program.op[op] != Op.ALLOCATE:
            return
        found = None if rebuilt.is_whole else _block_before_a_wrong_hole(comparison)
        if found is not None:
            yield replace(unrecorded, block_bytes={**unrecorded.block_bytes, found[0]: found[1]})
        yield from self._guesses_of_the_card(trial)
        if len(self.history.labels.pool):
            return
        lives = rebuilt.lives
        pools = _nearest_pools(self.history, lives, row)
        if self.history.action[row] == Action.OOM:
            if not pools and self._gives_back(trial, op):
                # If the first request of a private pool failed, the file shows of that pool only that no cache was
                # returned for it.
                pools = [1]
            yield from (replace(unrecorded, oom_pool=pool) for pool in pools)
            return
        assert comparison.done.places is not None
        places = np.array([self.history.address[row], comparison.done.places.address[op]], np.int64)
        for number in dict.fromkeys(lives.at(places, np.full(2, row)).tolist()):
            if number >= 0 and not lives.lives[number].pool_is_told:
                yield from (replace(unrecorded, pools={**unrecorded.pools, number: pool}) for pool in pools)

    def _gives_back(self, trial: _ReplayWithGuesses, op: int) -> bool:
        calls = trial.comparison.done.calls
        assert calls is not None
        gives = (calls.op == op) & is_one_of(calls.call, (Call.FREE, Call.UNMAP))
        return bool(gives.any()) and not any(
            what == "give" for what, _ in trial.comparison.rebuilt.recorded_calls.get(op, ())
        )

    # The address ranges of expandable segments usually follow one another, each 9/8 of the GPU's memory size. A segment
    # may also reuse a range that another segment has given back, and start a little above the start of that range.
    def _guesses_of_the_card(self, trial: _ReplayWithGuesses) -> Iterator[Unrecorded]:
        rebuilt = trial.comparison.rebuilt
        begins = np.unique([life.begin for life in rebuilt.lives.lives if life.is_expandable])
        if len(begins) < 2 or trial.unrecorded.beyond_room_bytes or rebuilt.room_bytes >= UNBOUNDED_BYTES:
            return
        beyond = np.diff(begins) * 8 // 9 - rebuilt.room_bytes
        beyond = beyond[(beyond > 0) & (beyond <= rebuilt.room_bytes)]
        if len(beyond):
            yield replace(trial.unrecorded, beyond_room_bytes=int(beyond.min()))

    # After the allocator has emptied the cache itself, it chooses memory for the request in a different way; the effect
    # may show only later.
    def _guesses_of_who_emptied(self, trial: _ReplayWithGuesses, row: int) -> Iterator[Unrecorded]:
        rebuilt, emptied = trial.comparison.rebuilt, trial.unrecorded.emptied
        gave = [op for op, calls in rebuilt.recorded_calls.items() if any(what == "give" for what, _ in calls)]
        rows = np.unique(rebuilt.row_of_op[np.array(gave, np.int64)])
        asks = rows[is_one_of(self.history.action[rows], REQUESTS) & (rows <= row)]
        own = set(rebuilt.row_of_op[rebuilt.program.op == Op.EMPTY_CACHE].tolist())
        for at in asks[::-1][:_MOST_ENTRIES_BACK].tolist():
            if at not in emptied:
                yield replace(trial.unrecorded, emptied={**emptied, at: at not in own})

    def _guesses_of_what_stayed(self, trial: _ReplayWithGuesses, op: int) -> Iterator[Unrecorded]:
        rebuilt, calls = trial.comparison.rebuilt, trial.comparison.done.calls
        assert calls is not None
        row = int(rebuilt.row_of_op[op])
        since = self._first_move(row)
        given = calls.address[(calls.op == op) & is_one_of(calls.call, (Call.FREE, Call.UNMAP))]
        # The new segment of the request may already occupy memory that was returned to the driver.
        numbers = rebuilt.lives.at(given, np.full(len(given), since - 1)).tolist()
        stayed = [
            number
            for number in dict.fromkeys(numbers)
            if number >= 0
            and not (life := rebuilt.lives.lives[number]).pool_is_told
            and not self._is_given(life, since, row)
        ]
        for pool in _nearest_pools(self.history, rebuilt.lives, row) if stayed else ():
            yield replace(trial.unrecorded, pools={**trial.unrecorded.pools, **dict.fromkeys(stayed, pool)})

    # When memory is short, the allocator returns only cached segments of the request's own pool.
    def _guesses_of_what_went(self, trial: _ReplayWithGuesses, op: int) -> Iterator[Unrecorded]:
        rebuilt, calls = trial.comparison.rebuilt, trial.comparison.done.calls
        assert calls is not None
        row = int(rebuilt.row_of_op[op])
        since = self._first_move(row)
        back = since + np.flatnonzero(is_one_of(self.history.action[since:row], GIVEN_BACK))
        went = rebuilt.lives.at(self.history.address[back], back - 1).tolist()
        given = calls.address[(calls.op == op) & is_one_of(calls.call, (Call.FREE, Call.UNMAP))]
        stayed = rebuilt.lives.at(given, np.full(len(given), since - 1)).tolist()
        has_failed = self.history.action[row] == Action.OOM  # a failed request has no block that shows its pool
        untold = [
            number
            for number in set(went) - (set() if has_failed else set(stayed))
            if number >= 0 and not rebuilt.lives.lives[number].pool_is_told
        ]
        if not untold:
            return
        oom_pool, pools = trial.unrecorded.oom_pool, trial.unrecorded.pools
        own = int(pool_of_rows(self.history, rebuilt.lives, oom_pool)[row])
        for pool in _nearest_pools(self.history, rebuilt.lives, row) if has_failed else [own]:
            yield replace(
                trial.unrecorded,
                oom_pool=pool if has_failed else oom_pool,
                pools={**pools, **dict.fromkeys(untold, pool)},
            )

    def _first_move(self, row: int) -> int:
        is_moved = is_one_of(self.history.action[:row], (*TAKEN, *GIVEN_BACK))
        return row - int(np.argmin(is_moved[::-1])) if not is_moved.all() else 0

    def _is_given(self, life: SegmentLife, since: int, row: int) -> bool:
        moved = is_one_of(self.history.action[row:], GIVEN_BACK)
        stop = row + int(np.argmin(moved)) if not moved.all() else len(self.history)
        return since <= life.died < stop


def _identity(unrecorded: Unrecorded) -> tuple[object, ...]:
    guesses = (unrecorded.block_bytes, unrecorded.pools, unrecorded.emptied)
    return unrecorded.beyond_room_bytes, unrecorded.oom_pool, *(frozenset(guess.items()) for guess in guesses)


# Pools that were used last before the entry come first, because the code that ran last most likely continues.
def _nearest_pools(history: History, lives: SegmentLives, row: int) -> list[int]:
    pools = {int(pool) for pool in lives.pools().tolist() if pool}
    before = pool_of_rows(history, lives)[:row]
    used, latest = np.unique(before[::-1], return_index=True)
    since = dict(zip(used.tolist(), latest.tolist(), strict=True))
    nearest = sorted(pools, key=lambda pool: (since.get(pool, len(history)), pool))
    return [*nearest[:_MOST_POOLS], max(pools) + 1] if pools else []


# The new size is the smallest that makes the free block too small for the request.
def _block_before_a_wrong_hole(comparison: Comparison) -> tuple[int, int] | None:
    rebuilt, op = comparison.rebuilt, comparison.first_difference
    program, places = rebuilt.program, comparison.done.places
    assert op is not None
    assert places is not None
    blocks = replay(cut(program, op), rebuilt.settings, ReplayDevice.of(rebuilt)).blocks
    row = int(np.searchsorted(blocks.address, places.address[op]))
    if not 0 < row < len(blocks.address) or blocks.segment[row - 1] != blocks.segment[row]:
        return None
    key, size = int(blocks.key[row - 1]), int(blocks.size[row - 1])
    is_from_before = blocks.state[row - 1] == State.ALLOCATED and rebuilt.row_of_key[key] < 0
    if blocks.state[row] != State.FREE or not is_from_before or key not in program.key[program.op == Op.FREE]:
        return None
    grown = size + int(blocks.size[row]) - rebuilt.settings.rounded_bytes(int(program.size[op])) + BLOCK_UNIT_BYTES
    is_possible = size < grown <= rebuilt.settings.rounded_bytes(int(rebuilt.size_of_key[key])) + LARGEST_SMALL_BYTES
    return (int(blocks.address[row - 1]), grown) if is_possible else None
