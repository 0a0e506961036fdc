"""An advice, a setting: what is done, and what is said of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common_advice import habits
from benchmarks.common_advice.loop import CARD, Loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a loop came to; bytes."""

    allocated: int
    reserved: int
    driver_calls: float
    """A step."""
    fits: bool
    """On a T4; where it does not, the bytes are those of a card like it with more memory."""
    time_ratio: float | None
    """Of a small loop's seconds on the CPU beside the plain one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One advice; `changes` are fields of `Loop`."""

    name: str
    verdict: str
    changes: dict[str, Any] = field(default_factory=dict)
    holds: Callable[[Measured, Measured], bool] = lambda own, none: True
    is_timed: bool = False
    """Whether time on a CPU says something of time on a card: the same work is done, or more, or less."""
    length: int | None = None
    card: str = CARD
    environment: dict[str, str] = field(default_factory=dict)
    of: type[Loop] = Loop
    after: Callable[[Loop], None] | None = None
    """What is done after the steps; then the bytes are those that are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """A text for PYTORCH_ALLOC_CONF."""

    text: str
    verdict: str
    name: str = ""
    lengths: str = "random"
    holds: Callable[[habits.Measured], bool] = lambda own: True


def is_same(own: Measured, none: Measured) -> bool:
    """Whether nothing that counts is saved or lost."""
    return abs(own.allocated / none.allocated - 1) < 0.005


def less(share: float) -> Callable[[Measured, Measured], bool]:
    """Whether what is allocated at most is below a share of what the plain loop allocates."""
    return lambda own, none: own.allocated < share * none.allocated
