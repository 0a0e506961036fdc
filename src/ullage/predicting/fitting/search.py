"""Find the largest value that fits, with few probes, two at a time.

Memory is nearly a straight line in a batch size, so the line through two probes foretells where it crosses the budget;
that value and the next are probed together, and when the one fits and the other does not, both are proved. A line that
foretells badly costs rounds, never the truth: the bracket shrinks with every round, and after three rounds every second
one cuts it into thirds.
What is larger mostly needs more; where it does not (the allocator's rounding), the answer is below the smallest value
that was seen not to fit. It knows no process: a probe is a function.
"""

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
    """The need of one value: bytes at the most, None where memory ran out; and whether it fits at both ends."""

    high_bytes: int | None
    fits: bool


Probe = Callable[[Sequence[int]], Mapping[int, ProbedNeed]]
"""A function that runs values, in parallel as far as it can, and returns what each needs."""


@dataclass(slots=True)
class FitSearch:
    """The state of one search; `run` completes it."""

    axis: Axis
    budget_bytes: int
    best: int = -1
    """Position of the largest value known to fit; -1: none."""
    worst: int | None = None
    """Position of the smallest value known not to fit."""
    points: dict[int, int] = field(default_factory=dict)
    """Bytes needed, by position: the points through which the line is drawn."""
    unbounded: bool = False
    """Whether the range has no end: the search then stops where a value sixteen times as large needs no more."""
    _fitting: set[int] = field(default_factory=set)
    _rounds: int = 0

    def record(self, needs: Mapping[int, ProbedNeed]) -> None:
        """Record the needs of values that were run."""
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
        """Whether the largest value is found: the next does not fit, or there is none, or the lowest does not fit."""
        return self.best == self.axis.last or self.worst == self.best + 1 or self.worst == 0 or self.is_flat

    @property
    def is_flat(self) -> bool:
        """Whether ever larger values fit and need the same: memory does not depend on the option."""
        if not self.unbounded or self.worst is not None:
            return False
        values = {self.axis.value_at(position): size for position, size in self.points.items()}
        most = max(values, default=0)
        alike = [value for value, size in values.items() if size >= values[most] and value <= most]
        return len(alike) >= _FLAT_VALUES and min(alike) * _FLAT_FACTOR <= most

    def run(self, probe: Probe, start: Sequence[int] = ()) -> None:
        """Probe until the largest value that fits is known, and first the values of the range near those of `start`."""
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

    def _predicted_position(self) -> int | None:
        """Return the last position that fits on a line through two points: the largest, and one well below it."""
        if len(self.points) < 2:
            return None
        x1, y1 = max(self.points.items())
        # Close neighbours differ by the allocator's granularity; small values may have their peak elsewhere.
        x0, y0 = max(
            (point for point in self.points.items() if point[0] <= x1 * _LOWER_POINT_SHARE),
            default=min(self.points.items()),
        )
        if y1 <= y0:
            return None  # something that the option does not change sets the peak
        crossing = x1 + (self.budget_bytes - y1) * (x1 - x0) // (y1 - y0)
        return min(crossing, self._times(_LARGEST_FACTOR))
