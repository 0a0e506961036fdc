"""The search strategy for allocator settings: which settings to simulate next, and which are best.

The search does not know how long a driver call takes. It counts the calls: settings that need many more calls than the
present settings are tried but not recommended.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from ullage.base.units import GIB, text_of_bytes
from ullage.explaining.tuning.candidate import Candidate, Space
from ullage.explaining.tuning.trial import RecordedRun, Trial
from ullage.recorded.settings import Settings

_GAIN_ONE_PART_IN: Final = 100
# The smallest saving that justifies a change of settings: 1 / `_GAIN_ONE_PART_IN` of the reserved bytes, or
# `_GAIN_ENOUGH_BYTES` if that is less. On a GPU with much memory, a fraction alone could exceed the memory of a batch
# and hide a useful saving.
_GAIN_ENOUGH_BYTES: Final = GIB // 2
# A factor. Each additional allocator option must save at least the smallest useful saving, multiplied by this factor.
# The product is 2 % of the reserved bytes, but at most 1 GiB.
_GAINS_PER_OPTION: Final = 2
_STARTING_POINTS: Final = 3
_MOST_THREADS: Final = 8
_PROGRESS_SECONDS: Final = 0.5


@dataclass(slots=True, kw_only=True)
class SettingsSearch:
    """Searches for the best allocator settings, by simulating a run with many of them."""

    run: RecordedRun
    space: Space
    room_bytes: int
    semantics: str
    progress: Callable[[str], None]
    trials: dict[Settings, Trial] = field(default_factory=dict)
    present: Trial | None = None
    deadline: float = 0.0
    is_complete: bool = True
    _candidates: dict[str, Candidate] = field(default_factory=dict)
    _progress_at: float = 0.0

    def try_present(self, text: str, settings: Settings, seconds: float) -> Trial:
        """Start the time limit, and simulate the run with its present settings."""
        self.deadline = time.monotonic() + seconds
        self.present = self.trials[settings] = self.run.attempt(text, settings, self.room_bytes)
        return self.present

    def run_from(self, start: Candidate) -> None:
        """Simulate the run with each option alone. Then improve the best candidates one option at a time."""
        self.try_all(self.space.alone())
        for first in [*self._starts(), start]:
            current = first
            while True:
                around = list(self.space.around(current))
                self.try_all(around)
                chosen = self._candidates.get(self.choose([self._trial(each) for each in (current, *around)]).text)
                if chosen is None or chosen == current or not self.is_complete:
                    break
                current = chosen

    def try_all(self, candidates: Iterable[Candidate]) -> None:
        """Simulate the run with all candidates that were not tried yet, in parallel, until the time limit."""
        work: dict[Settings, Candidate] = {}
        for candidate in candidates:
            settings = candidate.settings(self.semantics)
            if settings is not None and settings not in self.trials:
                work.setdefault(settings, candidate)
        waiting = iter(work.items())
        threads = min(os.cpu_count() or 1, _MOST_THREADS)
        with ThreadPoolExecutor(threads) as pool:
            while part := list(islice(waiting, threads)):
                if time.monotonic() > self.deadline:
                    self.is_complete = False
                    return
                found = pool.map(
                    lambda item: self.run.attempt(item[1].text, item[0], self.room_bytes),
                    part,
                )
                for (settings, candidate), trial in zip(part, found, strict=True):
                    self.trials[settings] = trial
                    self._candidates[trial.text] = candidate
                self._report_progress()

    def _report_progress(self) -> None:
        if time.monotonic() - self._progress_at < _PROGRESS_SECONDS:
            return
        self._progress_at = time.monotonic()
        best = self.choose(list(self.trials.values()))
        what = f"{text_of_bytes(best.peak_reserved_bytes)} reserved" if best.fits else "none fits"
        self.progress(f"{len(self.trials)} settings replayed; best so far: {what} with {best.text or 'nothing set'}")

    def settings_of(self, trial: Trial) -> Settings:
        """Return the allocator settings that a simulation used."""
        return next(settings for settings, found in self.trials.items() if found is trial)

    def _trial(self, candidate: Candidate) -> Trial | None:
        settings = candidate.settings(self.semantics)
        return self.trials.get(settings) if settings is not None else None

    def _starts(self) -> list[Candidate]:
        starts: dict[tuple[str, ...], Candidate] = {}
        for trial in self.ranked():
            candidate = self._candidates.get(trial.text)
            if candidate is not None:
                starts.setdefault(tuple(name for name, _ in candidate.options), candidate)
        return list(starts.values())[:_STARTING_POINTS]

    def _key(self, trial: Trial) -> tuple[Any, ...]:
        assert self.present is not None
        if not trial.fits:
            return (True, -trial.reached, trial.ooms, trial.options, trial.text)
        return (
            False,
            self._needs_many_calls(trial),
            trial.peak_reserved_bytes,
            trial.driver_calls,
            trial.options,
            trial.text,
        )

    def _needs_many_calls(self, trial: Trial) -> bool:
        assert self.present is not None
        now = self.present.driver_calls
        return trial.driver_calls > max(2 * now, now + self.run.allocations // 100)

    def ranked(self) -> list[Trial]:
        """Return the results of all simulations, best first."""
        return sorted(self.trials.values(), key=self._key)

    def choose(self, trials: Sequence[Trial | None]) -> Trial:
        """Return the best of the given simulations.

        Among nearly equal simulations, the one with the fewest retries is best. Each additional allocator option must
        save memory, because a combination of many options may suit only the recorded run.
        """
        found = sorted((trial for trial in trials if trial is not None), key=self._key)
        first = found[0]
        if not first.fits:
            return first
        found = [
            trial for trial in found if trial.fits and self._needs_many_calls(trial) == self._needs_many_calls(first)
        ]
        price = _GAINS_PER_OPTION * self._least_gain()

        def score(trial: Trial) -> tuple[int, int]:
            return trial.peak_reserved_bytes + trial.options * price, trial.options

        first = min(found, key=score)
        # A trial with fewer options would be as good only if the price of the further options were counted twice.
        near = [
            trial
            for trial in found
            if trial.options == first.options
            and trial.peak_reserved_bytes <= first.peak_reserved_bytes + self._least_gain()
        ]
        return min(near, key=lambda trial: (trial.retries, trial.driver_calls, self._key(trial)))

    def _least_gain(self) -> int:
        assert self.present is not None
        return min(self.present.peak_reserved_bytes // _GAIN_ONE_PART_IN, _GAIN_ENOUGH_BYTES)

    def better(self) -> Trial | None:
        """Return the simulation with the recommended settings. Return None if no settings are better than the present
        ones.
        """
        assert self.present is not None
        best, now = self.choose(list(self.trials.values())), self.present
        if not best.fits:
            return None
        if not now.fits:
            return best if best.text != now.text else None
        saved = now.peak_reserved_bytes - best.peak_reserved_bytes
        if saved > 0 and saved >= self._least_gain() and not self._needs_many_calls(best):
            return best
        worth = max(10, self.run.allocations // 1000, now.driver_calls // 10)
        fewer = [
            trial
            for trial in self.trials.values()
            if trial.fits
            and trial.peak_reserved_bytes <= now.peak_reserved_bytes
            and now.driver_calls - trial.driver_calls >= worth * max(1, trial.options - now.options)
        ]
        return min(
            fewer,
            key=lambda trial: (trial.driver_calls + trial.options * worth, trial.retries, self._key(trial)),
            default=None,
        )


def frontier_of(trials: Iterable[Trial]) -> list[Trial]:
    """Return the simulations that no other one beats in both memory and driver calls."""
    order = sorted(
        (trial for trial in trials if trial.fits),
        key=lambda trial: (trial.driver_calls, trial.peak_reserved_bytes, trial.options, trial.text),
    )
    found: list[Trial] = []
    for trial in order:
        if not found or trial.peak_reserved_bytes < found[-1].peak_reserved_bytes:
            found.append(trial)
    return found
