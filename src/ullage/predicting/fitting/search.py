"""Find the largest value of an option that fits, in few runs of the script, two at a time."""

# Memory is nearly linear in the batch size, so a line through two probes predicts where it reaches the GPU's memory.
# The predicted value and the next one are probed together. If the first fits and the second does not, both are proved.
# A bad prediction costs rounds but never a wrong result: the search interval shrinks in every round, and after three
# rounds every second round splits it into thirds. Larger values usually need more memory. If they do not, because of
# the allocator's rounding, the result is below the smallest value that was seen not to fit. The search knows nothing of
# processes: a probe is a function.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ullage.predicting.fitting.axis import Axis

_LARGEST_FACTOR: Final = 8  # times the largest value known to fit
_TRUSTING_ROUNDS: Final = 3
_LOWER_POINT_SHARE: Final = 0.75
_FLAT_VALUES: Final = 3
_FLAT_FACTOR: Final = 16


@dataclass(frozen=True, slots=True)
class ProbedNeed:
    """The memory that a run with one option value needs, and whether the run fits on the GPU."""

    high_bytes: int | None
    """The upper end of the predicted memory range in bytes, or None if memory ran out."""
    fits: bool


Probe = Callable[[Sequence[int]], Mapping[int, ProbedNeed]]
"""A function that runs the script with several values, and returns how much memory each needs."""


@dataclass(slots=True)
class FitSearch:
    """A search for the largest value of an option with which a script fits."""

    axis: Axis
    budget_bytes: int
    best: int = -1
    """The index of the largest value that is known to fit, or -1 if none is known."""
    worst: int | None = None
    """The index of the smallest value that is known not to fit, or None if none is known."""
    points: dict[int, int] = field(default_factory=dict)
    """The memory that each option value needs, in bytes. The keys are the indices of the values.

    A line through these points predicts the largest value that fits.
    """
    unbounded: bool = False
    """Whether the search has no upper limit, because the user set none.

    Such a search stops if a 16-fold increase of the option value does not increase the needed memory.
    """
    _fitting: set[int] = field(default_factory=set)
    _rounds: int = 0

    def record(self, needs: Mapping[int, ProbedNeed]) -> None:
        """Store how much memory each value needs, after it was run."""
        for value, need in needs.items():
            position = self.axis.position_of(value)
            if need.high_bytes is not None:
                self.points[position] = need.high_bytes
            if need.fits:
                self._fitting.add(position)
            elif self.worst is None or position < self.worst:
                self.worst = position
        self.best = max((fits for fits in self._fitting if self.worst is None or fits < self.worst), default=-1)

    @property
    def is_done(self) -> bool:
        """Whether the search is over.

        It is over if the largest value that fits is known, if no value fits, or if the option has no effect on memory.
        """
        return self.best == self.axis.last or self.worst == self.best + 1 or self.worst == 0 or self.is_flat

    @property
    def is_flat(self) -> bool:
        """Whether the option seems to have no effect on the needed memory."""
        if not self.unbounded or self.worst is not None:
            return False
        values = {self.axis.value_at(position): size for position, size in self.points.items()}
        most = max(values, default=0)
        alike = [value for value, size in values.items() if size >= values[most] and value <= most]
        return len(alike) >= _FLAT_VALUES and min(alike) * _FLAT_FACTOR <= most

    def run(self, probe: Probe, start: Sequence[int] = ()) -> None:
        """Run the script until the largest value that fits is known, beginning with values near `start`."""
        if start:
            inside = {self.axis.value_at(max(0, self.axis.position_of(value))) for value in start}
            self.record(probe(sorted(inside)))
        while not self.is_done:
            self._rounds += 1
            self.record(probe([self.axis.value_at(position) for position in self._next()]))

    def _next(self) -> list[int]:
        low, high = self.best + 1, (self.axis.last if self.worst is None else self.worst - 1)
        if self.best < 0 and self.worst is None:
            return sorted({0, min(high, self.axis.position_of(self.axis.low * 4))})
        predicted = self._predicted_position()
        if predicted is None or (self._rounds > _TRUSTING_ROUNDS and self._rounds % 2 == 0):
            if self.worst is None:
                return sorted({min(high, self._times(2)), min(high, self._times(4))})
            third = max(1, (high - low + 1) // 3)
            return sorted({min(high, low + third), max(low, high - third)})
        predicted = max(low, min(high, predicted))
        return sorted({predicted, min(high, predicted + 1) if predicted < high else max(low, predicted - 1)})

    def _times(self, factor: int) -> int:
        return max(self.best + 1, self.axis.position_of(self.axis.value_at(max(0, self.best)) * factor))

    # The prediction is a line through the bytes of the highest position and of a much lower one.
    def _predicted_position(self) -> int | None:
        if len(self.points) < 2:
            return None
        x1, y1 = max(self.points.items())
        # Points that are too close differ by the allocator's granularity, and small values may have their peak
        # elsewhere.
        x0, y0 = max(
            (point for point in self.points.items() if point[0] <= x1 * _LOWER_POINT_SHARE),
            default=min(self.points.items()),
        )
        if y1 <= y0:
            return None  # The peak comes from memory that the option does not change.
        crossing = x1 + (self.budget_bytes - y1) * (x1 - x0) // (y1 - y0)
        return min(crossing, self._times(_LARGEST_FACTOR))
