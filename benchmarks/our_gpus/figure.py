"""One figure that the real GPU and the emulated one both have, and how the two compare."""

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Verdict(Enum):
    """How a figure of the real GPU compares with the emulated one."""

    EQUAL = "equal"
    INSIDE = "inside the interval"
    DIFFERENT = "different"
    RECORDED = "recorded only"
    """The emulated GPU has no such figure (durations), or it is not meant to be the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A value of the real GPU next to the emulated GPU's; bytes where the name ends in "bytes"."""

    name: str
    kind: str
    """What the summary counts it under: "allocated", "requested", "reserved", "context", ..."""
    real: Any
    emulated: Any = None
    interval: tuple[float, float] | None = None
    """Where ullage states an interval instead of a value."""
    recorded_only: bool = False

    @property
    def verdict(self) -> Verdict:
        """Compare the two."""
        if self.recorded_only:
            return Verdict.RECORDED
        if self.interval is not None:
            low, high = self.interval
            return Verdict.INSIDE if low <= self.real <= high else Verdict.DIFFERENT
        return Verdict.EQUAL if self.real == self.emulated else Verdict.DIFFERENT


def recorded(name: str, kind: str, real: Any) -> Figure:
    """Make a figure that is stored and not compared."""
    return Figure(name=name, kind=kind, real=real, recorded_only=True)
