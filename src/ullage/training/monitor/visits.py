"""Finds growth that comes once in each `Monitor.phase` context, such as predictions that each evaluation keeps.

The contexts may have any number of steps, and may come at any rhythm. The memory at the beginning of a context is
compared with that of the contexts before it. This module does not use torch.
"""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ullage.base.growth import EVEN, is_even, is_slowing

_SUSPECTED: Final = 5
_ESTABLISHED: Final = 8
"""The number of rises from one context to the next after which growth is reported."""

_LEAST_STEPS: Final = 512


@dataclass(slots=True)
class Visit:
    """One `Monitor.phase` context."""

    bytes: int
    blocks: int
    """The allocated bytes and blocks at its beginning."""
    step: int
    """The number of training steps before it, counted since the monitor started."""
    phase_steps: int
    """The number of training steps of its phase before it."""
    added_blocks: int = 0
    """The number of live blocks that it has added itself, without the contexts inside of it."""
    added_bytes: int = 0


class Visits:
    """The latest contexts of a phase."""

    def __init__(self) -> None:
        self._begun: deque[Visit] = deque(maxlen=_ESTABLISHED + 1)

    def begin(self, visit: Visit) -> None:
        """Add a context that begins."""
        self._begun.append(visit)

    @property
    def is_suspicious(self) -> bool:
        """Whether growth becomes likely with this context: time to search for the variable that holds the memory."""
        return self._rises() == _SUSPECTED

    def growth(self) -> tuple[Visit, Visit] | None:
        """Return the first and the last context of a leak. None if memory does not grow from context to context."""
        if self._rises() < _ESTABLISHED:
            return None
        visits = list(self._begun)
        first, last = visits[0], visits[-1]
        if last.step - first.step < _LEAST_STEPS:
            return None  # the minimums over 8 steps show this growth too, together with its source line
        own = sum(visit.added_blocks for visit in visits[:-1]), sum(visit.added_bytes for visit in visits[:-1])
        if 2 * own[0] < last.blocks - first.blocks or 2 * own[1] < last.bytes - first.bytes:
            return None  # memory grows between the contexts
        rises = [after.blocks - before.blocks for before, after in pairwise(visits)]
        half = len(rises) // 2
        if is_slowing(sum(rises[:half]), sum(rises[half:])):
            return None  # a cache that fills
        return first, last

    def _rises(self) -> int:
        """Return the number of latest contexts before which memory had risen, each time by similar amounts."""
        rises = []
        for after, before in pairwise(reversed(self._begun)):
            if after.blocks <= before.blocks or after.bytes <= before.bytes:
                break
            rises.append(after.bytes - before.bytes)
        return len(rises) if rises and is_even(rises, EVEN) else 0
