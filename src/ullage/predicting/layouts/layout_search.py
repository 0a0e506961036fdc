"""The largest value of an option that fits with one layout, with few runs. It knows no process: a run is a function.

A value fits if every rank that is run fits. So the rank that needed most is run first, and the others only where that
fits: a value that does not fit costs one run. Beyond that it is the search of `fitting.search`: what is larger needs
more, so that what does not fit makes larger values needless, and the largest that fits and the next are both run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ullage.predicting.fitting.axis import Axis
from ullage.predicting.fitting.search import FitSearch, ProbedNeed

Trial = tuple[int, int]
"""A value of the option, and a rank."""
RunTrials = Callable[[Sequence[Trial]], Mapping[Trial, ProbedNeed]]
"""A function that runs trials, in parallel as far as it can."""


@dataclass(slots=True)
class LayoutSearch:
    """The search of one layout; `run` completes it."""

    ranks: Sequence[int]
    axis: Axis | None
    """The option to find the largest value of; None: what the script is given is all that is tried."""
    budget_bytes: int
    start: Sequence[int] = ()
    """Values near the expected answer, which are run first."""
    best: int | None = None
    """The largest value that fits; None: none does. 0 where no option is varied."""
    next: int | None = None
    """The smallest value that does not fit; None: there is none in the range."""
    needs: dict[Trial, ProbedNeed] = field(default_factory=dict)
    _leading: int | None = None

    def run(self, run: RunTrials) -> None:
        """Run trials until the answer is known."""
        if self.axis is None:
            fits = self._values([0], run)[0].fits
            self.best, self.next = (0, None) if fits else (None, 0)
            return
        axis = self.axis
        search = FitSearch(axis, self.budget_bytes, unbounded=axis.is_unbounded)
        search.run(lambda values: self._values(values, run), self.start)
        self.best = axis.value_at(search.best) if search.best >= 0 else None
        self.next = axis.value_at(search.worst) if search.worst is not None else None

    def _values(self, values: Sequence[int], run: RunTrials) -> Mapping[int, ProbedNeed]:
        """Run values: the rank that needed most with each, and the others where it fits."""
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

    def _need_of(self, value: int) -> ProbedNeed:
        """Return the need of a value: of the rank that needs most, where all were run."""
        found = [self.needs[value, rank] for rank in self.ranks if (value, rank) in self.needs]
        sizes = [need.high_bytes for need in found]
        high = None if None in sizes else max(size for size in sizes if size is not None)
        return ProbedNeed(high_bytes=high, fits=all(need.fits for need in found))
