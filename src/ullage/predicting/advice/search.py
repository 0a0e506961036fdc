"""Search for the cheapest combination of changes with which a script fits on the GPU."""

# First, the script is run with every change alone; changes that need more GPUs are tried last. If one change alone is
# enough, the answer is the cheapest change that fits. If not, changes are added together, beginning with those that
# cost nothing, until the script fits. Then each change that is not needed is removed again, the most expensive first,
# and changes that have a strength (checkpointed blocks, parts of a batch) get the mildest setting that still fits.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ullage.predicting.advice.trial import ChangeSetting, ChangeTrial, Combination, combination, excludes
from ullage.predicting.changes.change import ChangeCost

Try = Callable[[Sequence[Combination]], Sequence[ChangeTrial]]
"""A function that runs the script with each combination of changes, in parallel if possible."""

# A change is useful if it saves at least this share of the unchanged script's peak memory.
_WORTH: Final = 0.01


@dataclass(slots=True)
class AdviceSearch:
    """A search for changes with which a script fits on the GPU."""

    settings: Mapping[str, Sequence[ChangeSetting]]
    """Maps each change that can be applied to its settings, ordered by the memory that they save."""
    base_bytes: int
    """The peak GPU memory of the unchanged script, in bytes."""
    run: Try
    time: Callable[[Combination], tuple[float, int]] = lambda one: (0.0, 0)
    """A function that estimates how much time changes add to a training step. The search uses it for sorting."""
    tried: dict[Combination, ChangeTrial] = field(default_factory=dict)
    """The result of every combination of changes that was run."""

    def singles(self) -> None:
        """Run the script with every change alone. Changes that need several GPUs come last."""
        self._run_alone(lambda cost: cost is not ChangeCost.CARDS)

    def best(self) -> ChangeTrial | None:
        """Run combinations of changes, and return the cheapest one with which the script fits.

        None if the script fits with no combination, even on more GPUs.
        """
        found = self._best_of_tried()
        if found is None:
            self._run_alone(lambda cost: cost is ChangeCost.CARDS)
            found = self._best_of_tried()
        return found

    def _run_alone(self, wanted: Callable[[ChangeCost], bool]) -> None:
        strongest = [settings[-1] for settings in self.settings.values()]
        self._try([combination([each]) for each in strongest if wanted(each.change.cost)])

    def _best_of_tried(self) -> ChangeTrial | None:
        alone = [trial for trial in self.tried.values() if trial.fits and len(trial.combination.parts) == 1]
        lowest = min((trial.combination.cost for trial in alone), default=None)
        found: list[ChangeTrial] = []
        for trial in sorted((each for each in alone if each.combination.cost is lowest), key=self._least_order):
            if not found or self._least_order(trial) < min(map(self._order, found)):
                found.append(self._milder(trial))
        added = self._add_up(lowest)
        return min([*found, *([added] if added is not None else [])], key=self._order, default=None)

    def learn(self, trials: Sequence[ChangeTrial]) -> None:
        """Add results of runs to the search, such as those that finished before an interruption."""
        for trial in trials:
            self.tried.setdefault(trial.combination, trial)

    def best_so_far(self) -> ChangeTrial | None:
        """Return the cheapest combination among the finished runs that fit, or None if no run fits."""
        return min((trial for trial in self.tried.values() if trial.fits), key=self._order, default=None)

    # A combination of changes is useful only if it is cheaper than a single change that fits, whose cost is `limit`.
    def _add_up(self, limit: ChangeCost | None) -> ChangeTrial | None:
        parts: list[ChangeSetting] = []
        for cost in ChangeCost:
            if limit is not None and cost >= limit:
                return None
            new = [part for part in self._useful(cost) if not any(excludes(part, other) for other in parts)]
            for part in new:
                if not any(excludes(part, other) for other in parts):
                    parts.append(part)
            if not new or len(parts) < 2:
                continue
            [trial] = self._try([combination(parts)])
            if trial.fits:
                return self._milder(self._shrunk(trial))
            parts = self._without_harmful(parts, trial)
        return None

    def _useful(self, cost: ChangeCost) -> list[ChangeSetting]:
        found = []
        for settings in self.settings.values():
            strongest = settings[-1]
            trial = self.tried.get(combination([strongest]))
            if strongest.change.cost is cost and trial is not None and trial.prediction and not trial.problem:
                found.append(strongest)
        return sorted(found, key=lambda part: -self._gain(combination([part])))

    def _without_harmful(self, parts: list[ChangeSetting], trial: ChangeTrial) -> list[ChangeSetting]:
        if trial.prediction is not None and not trial.problem:
            return parts
        trials = self._try([combination([each for each in parts if each != part]) for part in parts])
        kept = [part for part, other in zip(parts, trials, strict=True) if other.prediction is None or other.problem]
        return kept or parts[:1]

    def _shrunk(self, trial: ChangeTrial) -> ChangeTrial:
        parts = sorted(trial.combination.parts, key=lambda part: (-part.change.cost, self._gain(combination([part]))))
        for part in parts:
            rest = trial.combination.without(part)
            if not rest.parts:
                break
            [without] = self._try([rest])
            if without.fits:
                trial = without
        return trial

    # The mildest setting with which the script fits. Two runs at a time split the settings into three parts.
    def _milder(self, trial: ChangeTrial) -> ChangeTrial:
        for part in trial.combination.parts:
            settings = self.settings[part.change.key]
            low, high = 0, settings.index(part)
            while low < high:
                third = (high - low) // 3
                numbers = sorted({low + third, high - 1 - third})
                tried = self._try([trial.combination.with_part(settings[number]) for number in numbers])
                for number, milder in zip(numbers, tried, strict=True):
                    if milder.fits:
                        trial, high = milder, number
                        break
                    low = number + 1
        return trial

    def _gain(self, one: Combination) -> int:
        trial = self.tried.get(one)
        need = trial.need_bytes if trial is not None else None
        return self.base_bytes - need if need is not None else 0

    def useful(self) -> list[ChangeSetting]:
        """Return the changes that save enough memory on their own, the change that saves the most first."""
        alone = [one for one in self.tried if len(one.parts) == 1 and self._gain(one) > _WORTH * self.base_bytes]
        return [one.parts[0] for one in sorted(alone, key=self._gain, reverse=True)]

    # The order is by cost, number of changes, time, strength and saving.
    def _order(self, trial: ChangeTrial) -> tuple[int, int, tuple[float, int], int, int]:
        parts = trial.combination.parts
        strength = sum(list(self.settings[part.change.key]).index(part) for part in parts)
        return (trial.combination.cost, len(parts), self.time(trial.combination), strength, trial.need_bytes or 0)

    def _least_order(self, trial: ChangeTrial) -> tuple[int, int, tuple[float, int], int, int]:
        [part] = trial.combination.parts
        return (trial.combination.cost, 1, self.time(combination([self.settings[part.change.key][0]])), 0, 0)

    def _try(self, combinations: Sequence[Combination]) -> list[ChangeTrial]:
        new = list(dict.fromkeys(one for one in combinations if one not in self.tried))
        if new:
            for one, trial in zip(new, self.run(new), strict=True):
                self.tried[one] = trial
        return [self.tried[one] for one in combinations]
