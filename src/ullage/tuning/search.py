"""The search itself: which settings to replay next, and which of those that were are best.

It does not know what a call of the driver costs in time: calls are counted, and settings that need many more of them
than now are tried but not recommended.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from ullage._units import text_of_bytes
from ullage.settings import Settings
from ullage.tuning.candidate import Candidate, Space
from ullage.tuning.trial import Run, Trial

_LEAST_GAIN: Final = 100  # what is less than one of so many parts of what is reserved now is not worth a change
_PRICE_OF_OPTION: Final = 2
"""How many of those parts an option more has to save."""
_STARTS: Final = 3
_MOST_THREADS: Final = 8
_TELL_SECONDS: Final = 0.5


@dataclass(slots=True, kw_only=True)
class Search:
    """Trials so far, each settings once, and what to try next."""

    run: Run
    space: Space
    room_bytes: int
    semantics: str
    progress: Callable[[str], None]
    trials: dict[Settings, Trial] = field(default_factory=dict)
    present: Trial | None = None
    deadline: float = 0.0
    is_complete: bool = True
    _candidates: dict[str, Candidate] = field(default_factory=dict)
    _told: float = 0.0

    def begin(self, text: str, settings: Settings, seconds: float) -> Trial:
        """Try the present settings, and start the clock."""
        self.deadline = time.monotonic() + seconds
        self.present = self.trials[settings] = self.run.attempt(text, settings, self.room_bytes)
        return self.present

    def go(self, start: Candidate) -> None:
        """Try every option alone, then go down from the best few, option by option, until nothing is better."""
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
        """Replay what was not yet, in parallel, as long as there is time."""
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
                self._tell()

    def _tell(self) -> None:
        if time.monotonic() - self._told < _TELL_SECONDS:
            return
        self._told = time.monotonic()
        best = self.choose(list(self.trials.values()))
        what = f"{text_of_bytes(best.peak_reserved_bytes)} reserved" if best.fits else "none fits"
        self.progress(f"{len(self.trials)} settings replayed; so far {what} with {best.text or 'nothing set'}")

    def settings_of(self, trial: Trial) -> Settings:
        """Return what a trial was run under."""
        return next(settings for settings, found in self.trials.items() if found is trial)

    def _trial(self, candidate: Candidate) -> Trial | None:
        settings = candidate.settings(self.semantics)
        return self.trials.get(settings) if settings is not None else None

    def _starts(self) -> list[Candidate]:
        """The best settings so far of different options."""
        starts: dict[tuple[str, ...], Candidate] = {}
        for trial in self.ranked():
            candidate = self._candidates.get(trial.text)
            if candidate is not None:
                starts.setdefault(tuple(name for name, _ in candidate.options), candidate)
        return list(starts.values())[:_STARTS]

    def _key(self, trial: Trial) -> tuple[Any, ...]:
        """What is better is less: it fits, cheaply enough, and reserves least."""
        assert self.present is not None
        if not trial.fits:
            return (True, -trial.reached, trial.ooms, trial.options, trial.text)
        return (False, self._is_dear(trial), trial.peak_reserved_bytes, trial.driver_calls, trial.options, trial.text)

    def _is_dear(self, trial: Trial) -> bool:
        """Whether it calls the driver far more often than now: once for a hundred requests, beyond twice as often."""
        assert self.present is not None
        now = self.present.driver_calls
        return trial.driver_calls > max(2 * now, now + self.run.allocations // 100)

    def ranked(self) -> list[Trial]:
        """Return all trials, the best first."""
        return sorted(self.trials.values(), key=self._key)

    def choose(self, trials: Sequence[Trial | None]) -> Trial:
        """Return the best; of those that are nearly as good the calmest.

        Every option has to earn its place: the more are set, the more they are fitted to this one run.
        """
        found = sorted((trial for trial in trials if trial is not None), key=self._key)
        first = found[0]
        if not first.fits:
            return first
        found = [trial for trial in found if trial.fits and self._is_dear(trial) == self._is_dear(first)]
        price = _PRICE_OF_OPTION * self._least_gain()
        score = {trial.text: trial.peak_reserved_bytes + trial.options * price for trial in found}
        alike = min(score.values()) + self._least_gain()
        near = [trial for trial in found if score[trial.text] <= alike]
        return min(near, key=lambda trial: (trial.retries, trial.options, trial.driver_calls, self._key(trial)))

    def _least_gain(self) -> int:
        assert self.present is not None
        return self.present.peak_reserved_bytes // _LEAST_GAIN

    def _few_calls(self) -> int:
        return max(10, self.run.allocations // 1000)

    def better(self) -> Trial | None:
        """Return what is better than the present settings: it fits where they do not, or saves bytes or calls."""
        assert self.present is not None
        best, now = self.choose(list(self.trials.values())), self.present
        if not best.fits or best.text == now.text:
            return None
        if not now.fits:
            return best
        saved = now.peak_reserved_bytes - best.peak_reserved_bytes
        if saved > 0 and saved >= self._least_gain() and not self._is_dear(best):
            return best
        fewer = [
            trial
            for trial in self.trials.values()
            if trial.fits
            and trial.peak_reserved_bytes <= now.peak_reserved_bytes
            and now.driver_calls - trial.driver_calls >= max(self._few_calls(), now.driver_calls // 10)
        ]
        return min(fewer, key=lambda trial: (trial.driver_calls, self._key(trial)), default=None)


def frontier_of(trials: Iterable[Trial]) -> list[Trial]:
    """Of those that fit: each reserves less than every one with fewer calls; of equals the one that sets least."""
    order = sorted(
        (trial for trial in trials if trial.fits),
        key=lambda trial: (trial.driver_calls, trial.peak_reserved_bytes, trial.options, trial.text),
    )
    found: list[Trial] = []
    for trial in order:
        if not found or trial.peak_reserved_bytes < found[-1].peak_reserved_bytes:
            found.append(trial)
    return found
