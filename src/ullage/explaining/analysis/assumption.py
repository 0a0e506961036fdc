"""What a recording lacks and its replay tells: the allocator's version, pools, true sizes of blocks from before.

Where a replay leaves the recording, what may explain it is tried, and kept if the replay then follows the recording
further: the program emptied the cache itself though room was needed; the request, or a segment that was given back, was
of a private pool; a block from before was larger. An entry that frees a block from before says what was asked for, not
how large the block was: up to 1 MiB behind it may not have been split off (DeviceCachingAllocator::should_split). The
free block behind it is smaller by that. Where a replay puts a request there that the recording has elsewhere, that free
block was too small for the request.
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
from ullage.recorded.settings import ALLOCATORS, BLOCK_UNIT_BYTES, LARGEST_SMALL_BYTES, USUAL, SettingsError

_MOST_TRIALS: Final = 300
"""The most replays of one search."""
_MOST_ENTRIES: Final = 2_000_000
"""The most entries that the replays of one search may have, all of them together; at least one is made."""
_MOST_ENTRIES_BACK: Final = 4
"""The most entries at which memory was given back for whose reason is looked, from where a replay differs."""
_MOST_POOLS: Final = 8
"""The most private pools in which a request or a segment is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What a recording lacks, as the replay that is closest to the recording has it."""

    semantics: str | None = None
    """The allocator's version: one of `settings.SEMANTICS`; None where the usual one is as close as any."""
    unrecorded: Unrecorded = field(default_factory=Unrecorded)
    rebuilder: Rebuilder | None = field(default=None, repr=False, compare=False)
    """The reconstruction of the programs that were replayed; it still has the last one."""
    recording: Recording | None = field(default=None, repr=False, compare=False)
    """The replay that was found, of all that was recorded, in the room that the run had."""

    def recording_of(
        self,
        history: History,
        *,
        semantics: str | None = None,
        alloc_conf: str | None = None,
        capacity_bytes: int | None = None,
    ) -> Recording:
        """Replay the program of a history with what is assumed, or return that replay where it was made already.

        The arguments are those with which `closest` was asked.
        """
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
        """Reconstruct the program of a history with what is assumed; arguments as of `rebuild.program_of`."""
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
    """Return what is assumed of a recording, because the replay is closest to the recording with it.

    Args:
        history: the recording of one device.
        semantics: the allocator's version, where it is known: one of `ullage.recorded.settings.SEMANTICS`.
        alloc_conf: the settings in force, where the snapshot does not record them.
        capacity_bytes: what the allocator could reserve at most, where no request failed.

    Raises:
        SettingsError: `alloc_conf` cannot be read.
    """
    is_recorded = bool((history.action == Action.OOM).any())
    is_too_small = recorded_card(history).peak_reserved_bytes > (capacity_bytes or 0)
    room = None if is_recorded or is_too_small else capacity_bytes
    # What a snapshot holds tells versions apart by their ties alone; the newest of each knows the most options, and of
    # several that do it exactly the newest is told.
    usual, *others = {allocator.tie: each for each, allocator in ALLOCATORS.items()}.values()
    candidates = [semantics] if semantics is not None else [usual, *reversed(others)]
    best: tuple[tuple[int, int], Assumptions] | None = None
    rebuilder = Rebuilder(history)
    for version in candidates:
        told = version if semantics is None and version != USUAL else None
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
        if nearest.order == (0, 0) or nearest.has_all_places:  # which another version's ties could only displace
            break
    assert best is not None
    return best[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guessed:
    """What was assumed for a replay, and how far that is from the recording."""

    order: tuple[int, int]
    unrecorded: Unrecorded
    has_all_places: bool
    """Whether addresses were compared, and all are the recorded ones."""
    recording: Recording


@dataclass(frozen=True, slots=True)
class _ReplayWithGuesses:
    """A replay with what was assumed for it."""

    unrecorded: Unrecorded
    recording: Recording
    comparison: Comparison

    @property
    def guessed(self) -> _Guessed:
        """What was assumed for it, and how far it is from the recording."""
        fidelity = self.comparison.fidelity
        return _Guessed(
            order=(fidelity.departures, fidelity.displaced),
            unrecorded=self.unrecorded,
            has_all_places=bool(fidelity.placements) and not fidelity.displaced,
            recording=self.recording,
        )

    @property
    def reached(self) -> float:
        """The entry at which it leaves the recording."""
        first = self.comparison.first_difference
        return float("inf") if first is None else float(self.comparison.rebuilt.row_of_op[first])


@dataclass(slots=True, kw_only=True)
class _AssumptionSearch:
    """The search for what lets a replay follow the recording further, one entry where it leaves it after the other."""

    rebuilder: Rebuilder
    semantics: str | None
    """The allocator's version; None: the usual one, which the program's notes then say."""
    alloc_conf: str | None
    room_bytes: int | None
    trials: int = 0

    @property
    def history(self) -> History:
        """The recording."""
        return self.rebuilder.history

    def nearest(self) -> "_Guessed":
        """Return what was assumed for the replay that is closest to the recording.

        The one that follows the recording furthest goes on first; where nothing lets it follow further, the next one.
        Of all that wait only that one is kept as it is: each holds a whole program.
        """
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
                # A block that is known to be larger may leave the request to the next hole of that kind, and a segment
                # that is known to be of a private pool may leave another to be given back in its place.
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
        """Yield what may explain that a replay leaves the recording where it does."""
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
                # Of a pool whose first request failed the file shows nothing but that for it no cache was given back.
                pools = [1]
            yield from (replace(unrecorded, oom_pool=pool) for pool in pools)
            return
        assert comparison.done.places is not None
        places = np.array([self.history.address[row], comparison.done.places.address[op]], np.int64)
        for number in dict.fromkeys(lives.at(places, np.full(2, row)).tolist()):
            if number >= 0 and not lives.lives[number].pool_is_told:
                yield from (replace(unrecorded, pools={**unrecorded.pools, number: pool}) for pool in pools)

    def _gives_back(self, trial: _ReplayWithGuesses, op: int) -> bool:
        """Tell whether a replay gives memory back at an operation at which the run gave none."""
        calls = trial.comparison.done.calls
        assert calls is not None
        gives = (calls.op == op) & is_one_of(calls.call, (Call.FREE, Call.UNMAP))
        return bool(gives.any()) and not any(
            what == "give" for what, _ in trial.comparison.rebuilt.recorded_calls.get(op, ())
        )

    def _guesses_of_the_card(self, trial: _ReplayWithGuesses) -> Iterator[Unrecorded]:
        """Yield the size of the whole card, as the distance of expandable segments shows it.

        Their addresses mostly follow one another, each range for 9/8 of the card. A segment may also lie in a range
        that another has given back, and begin a little behind where that began.
        """
        rebuilt = trial.comparison.rebuilt
        begins = np.unique([life.begin for life in rebuilt.lives.lives if life.is_expandable])
        if len(begins) < 2 or trial.unrecorded.beyond_room_bytes or rebuilt.room_bytes >= UNBOUNDED_BYTES:
            return
        beyond = np.diff(begins) * 8 // 9 - rebuilt.room_bytes
        beyond = beyond[(beyond > 0) & (beyond <= rebuilt.room_bytes)]
        if len(beyond):
            yield replace(trial.unrecorded, beyond_room_bytes=int(beyond.min()))

    def _guesses_of_who_emptied(self, trial: _ReplayWithGuesses, row: int) -> Iterator[Unrecorded]:
        """Yield the other answer to who gave memory back before an entry, or before those in front of it.

        After the allocator has done so itself it looks for a place otherwise, which may show later.
        """
        rebuilt, emptied = trial.comparison.rebuilt, trial.unrecorded.emptied
        gave = [op for op, calls in rebuilt.recorded_calls.items() if any(what == "give" for what, _ in calls)]
        rows = np.unique(rebuilt.row_of_op[np.array(gave, np.int64)])
        asks = rows[is_one_of(self.history.action[rows], REQUESTS) & (rows <= row)]
        own = set(rebuilt.row_of_op[rebuilt.program.op == Op.EMPTY_CACHE].tolist())
        for at in asks[::-1][:_MOST_ENTRIES_BACK].tolist():
            if at not in emptied:
                yield replace(trial.unrecorded, emptied={**emptied, at: at not in own})

    def _guesses_of_what_stayed(self, trial: _ReplayWithGuesses, op: int) -> Iterator[Unrecorded]:
        """Yield pools of the segments that a replay gives back at an operation, and the run does not."""
        rebuilt, calls = trial.comparison.rebuilt, trial.comparison.done.calls
        assert calls is not None
        row = int(rebuilt.row_of_op[op])
        since = self._first_move(row)
        given = calls.address[(calls.op == op) & is_one_of(calls.call, (Call.FREE, Call.UNMAP))]
        # Where memory was given back, the request's own new segment may lie by now.
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

    def _guesses_of_what_went(self, trial: _ReplayWithGuesses, op: int) -> Iterator[Unrecorded]:
        """Yield the pool of a request for the segments that the run gave back for it, and a replay does not.

        For lack of room the allocator gives back what the request's own pool has.
        """
        rebuilt, calls = trial.comparison.rebuilt, trial.comparison.done.calls
        assert calls is not None
        row = int(rebuilt.row_of_op[op])
        since = self._first_move(row)
        back = since + np.flatnonzero(is_one_of(self.history.action[since:row], GIVEN_BACK))
        went = rebuilt.lives.at(self.history.address[back], back - 1).tolist()
        given = calls.address[(calls.op == op) & is_one_of(calls.call, (Call.FREE, Call.UNMAP))]
        stayed = rebuilt.lives.at(given, np.full(len(given), since - 1)).tolist()
        has_failed = self.history.action[row] == Action.OOM  # then no block tells the request's pool
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
        """Return the first of the entries right before another at which memory was taken or given back, or that one."""
        is_moved = is_one_of(self.history.action[:row], (*TAKEN, *GIVEN_BACK))
        return row - int(np.argmin(is_moved[::-1])) if not is_moved.all() else 0

    def _is_given(self, life: SegmentLife, since: int, row: int) -> bool:
        """Tell whether a segment went with those that were given back since an entry, or right behind another."""
        moved = is_one_of(self.history.action[row:], GIVEN_BACK)
        stop = row + int(np.argmin(moved)) if not moved.all() else len(self.history)
        return since <= life.died < stop


def _identity(unrecorded: Unrecorded) -> tuple[object, ...]:
    """Return what tells one set of guesses from another."""
    guesses = (unrecorded.block_bytes, unrecorded.pools, unrecorded.emptied)
    return unrecorded.beyond_room_bytes, unrecorded.oom_pool, *(frozenset(guess.items()) for guess in guesses)


def _nearest_pools(history: History, lives: SegmentLives, row: int) -> list[int]:
    """Return the private pools that an entry may have to do with, where entries do not say it.

    What ran last is most likely to have gone on: those that were used last before the entry come first; then one that
    has nothing at the end. None where the recording shows no private pool.
    """
    pools = {int(pool) for pool in lives.pools().tolist() if pool}
    before = pool_of_rows(history, lives)[:row]
    used, latest = np.unique(before[::-1], return_index=True)
    since = dict(zip(used.tolist(), latest.tolist(), strict=True))
    nearest = sorted(pools, key=lambda pool: (since.get(pool, len(history)), pool))
    return [*nearest[:_MOST_POOLS], max(pools) + 1] if pools else []


def _block_before_a_wrong_hole(comparison: Comparison) -> tuple[int, int] | None:
    """Return the address and a size of the block behind which the replay puts its first block that lies elsewhere.

    The size is the least that leaves too little room for that request; None where no such block explains it.
    """
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
