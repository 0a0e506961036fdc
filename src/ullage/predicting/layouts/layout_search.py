"""Search for the largest value of an option that fits with one layout, with as few runs as possible."""

# A value fits if every rank that is run fits. So the rank that needs most memory is run first, and the other ranks only
# if that rank fits: a value that does not fit costs one run. Otherwise the search is that of `fitting.search`. It
# assumes that a larger value needs more memory. If a value does not fit, larger values are not run. The largest value
# that fits and the next value are both run.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ullage.predicting.fitting.axis import Axis
from ullage.predicting.fitting.search import FitSearch, ProbedNeed

Trial = tuple[int, int]
"""A trial run of the script: the value of the varied option, and the number of the rank."""
RunTrials = Callable[[Sequence[Trial]], Mapping[Trial, ProbedNeed]]
"""A function that runs the script for several values and ranks, in parallel if possible."""


@dataclass(slots=True)
class LayoutSearch:
    """A search for the largest value of an option with which one parallel layout fits."""

    ranks: Sequence[int]
    axis: Axis | None
    """The option to vary. If None, the script is run with its own arguments only."""
    budget_bytes: int
    start: Sequence[int] = ()
    """The option values to try first. They are near the expected result of the search."""
    best: int | None = None
    """The largest value of the option that fits, or None if no value fits. 0 if no option is varied."""
    next: int | None = None
    """The smallest value of the option that does not fit, or None if every value fits."""
    needs: dict[Trial, ProbedNeed] = field(default_factory=dict)
    _leading: int | None = None

    def run(self, run: RunTrials) -> None:
        """Run the script with different values and ranks until the result is known."""
        if self.axis is None:
            fits = self._values([0], run)[0].fits
            self.best, self.next = (0, None) if fits else (None, 0)
            return
        axis = self.axis
        search = FitSearch(axis, self.budget_bytes, unbounded=axis.is_unbounded)
        search.run(lambda values: self._values(values, run), self.start)
        self.best = axis.value_at(search.best) if search.best >= 0 else None
        self.next = axis.value_at(search.worst) if search.worst is not None else None

    # For each value, the rank that needs the most memory is run first. The other ranks are run only if it fits.
    def _values(self, values: Sequence[int], run: RunTrials) -> Mapping[int, ProbedNeed]:
        leading = self.ranks[0] if self._leading is None else self._leading
        others = [rank for rank in self.ranks if rank != leading]
        self.needs |= run([(value, leading) for value in values])
        fitting = [value for value in values if self.needs[value, leading].fits]
        if others and fitting:
            self.needs |= run([(value, rank) for value in fitting for rank in others])
        for value in values:
            if all((value, rank) in self.needs for rank in self.ranks):
                self._leading = max(self.ranks, key=lambda rank: self.needs[value, rank].high_bytes or 0)
        return {value: self._need_of(value) for value in values}

    # The rank that needs the most memory decides.
    def _need_of(self, value: int) -> ProbedNeed:
        found = [self.needs[value, rank] for rank in self.ranks if (value, rank) in self.needs]
        sizes = [need.high_bytes for need in found]
        high = None if None in sizes else max(size for size in sizes if size is not None)
        return ProbedNeed(high_bytes=high, fits=all(need.fits for need in found))
