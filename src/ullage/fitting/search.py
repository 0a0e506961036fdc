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

from ullage.fitting.axis import Axis

_FARTHEST: Final = 8  # times the largest value known to fit
_TRUSTING_ROUNDS: Final = 3
_APART: Final = 0.75
_ALIKE: Final = 3
_FLAT: Final = 16


@dataclass(frozen=True, slots=True)
class Need:
    """What one value needs: bytes at the most, None where memory ran out; and whether that fits for certain."""

    high_bytes: int | None
    fits: bool


Probe = Callable[[Sequence[int]], Mapping[int, Need]]
"""Runs values, together as far as it can, and says what each needs."""


@dataclass(slots=True)
class Search:
    """The state of one search; `run` brings it to its end."""

    axis: Axis
    budget_bytes: int
    best: int = -1
    """Position of the largest value known to fit; -1: none."""
    worst: int | None = None
    """Position of the smallest value known not to fit."""
    points: dict[int, int] = field(default_factory=dict)
    """Bytes that values at these positions need: what the line goes through."""
    unbounded: bool = False
    """Whether nobody named the highest value: the search ends where a sixteenfold value needs no more."""
    _fitting: set[int] = field(default_factory=set)
    _rounds: int = 0

    def know(self, needs: Mapping[int, Need]) -> None:
        """Take in what is known of values."""
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
        """Whether larger and larger values fit and need the same: nothing more is used, however large they get."""
        if not self.unbounded or self.worst is not None:
            return False
        values = {self.axis.value_at(position): size for position, size in self.points.items()}
        most = max(values, default=0)
        alike = [value for value, size in values.items() if size >= values[most] and value <= most]
        return len(alike) >= _ALIKE and min(alike) * _FLAT <= most

    def run(self, probe: Probe) -> None:
        """Probe until the largest value that fits is known."""
        while not self.is_done:
            self._rounds += 1
            self.know(probe([self.axis.value_at(position) for position in self._next()]))

    def _next(self) -> list[int]:
        low, high = self.best + 1, (self.axis.last if self.worst is None else self.worst - 1)
        if self.best < 0 and self.worst is None:
            return sorted({0, min(high, self.axis.position_of(self.axis.low * 4))})
        foretold = self._foretold()
        if foretold is None or (self._rounds > _TRUSTING_ROUNDS and self._rounds % 2 == 0):
            if self.worst is None:
                return sorted({min(high, self._times(2)), min(high, self._times(4))})
            third = max(1, (high - low + 1) // 3)
            return sorted({min(high, low + third), max(low, high - third)})
        foretold = max(low, min(high, foretold))
        return sorted({foretold, min(high, foretold + 1) if foretold < high else max(low, foretold - 1)})

    def _times(self, factor: int) -> int:
        return max(self.best + 1, self.axis.position_of(self.axis.value_at(max(0, self.best)) * factor))

    def _foretold(self) -> int | None:
        """The last position that fits by a line through two probes: the largest, and one well below it."""
        if len(self.points) < 2:
            return None
        x1, y1 = max(self.points.items())
        # Close neighbours differ by the allocator's granularity; small values may have their peak elsewhere.
        x0, y0 = max(
            (point for point in self.points.items() if point[0] <= x1 * _APART), default=min(self.points.items())
        )
        if y1 <= y0:
            return None  # something that the option does not change sets the peak
        crossing = x1 + (self.budget_bytes - y1) * (x1 - x0) // (y1 - y0)
        return min(crossing, self._times(_FARTHEST))
