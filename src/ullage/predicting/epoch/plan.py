"""Which batch to run next: first the heaviest, then every shape once, then those that come again a second time."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ullage.predicting.epoch.requests import Ints

MOST_RUNS: Final = 3
_PROBES: Final = 6
"""The heaviest, which are run before anything else."""


def _spread(count: int) -> Ints:
    """The numbers below `count` in an order that is spread over all of them at any time: what is not run until the
    time is over has something near it that was."""
    bits = max(1, (count - 1).bit_length())
    numbers = np.arange(1 << bits)
    mirrored = np.zeros_like(numbers)
    for bit in range(bits):
        mirrored |= ((numbers >> bit) & 1) << (bits - 1 - bit)
    return mirrored[mirrored < count]


class OpenRuns:
    """How often units of each key are still to be run."""

    __slots__ = ()
    _open: dict[int, int]

    def ran(self, key: int) -> None:
        """A unit of the key was run."""
        if key in self._open:
            self._open[key] -= 1
            if self._open[key] <= 0:
                del self._open[key]

    @property
    def is_done(self) -> bool:
        """Whether every key was run as often as is wanted."""
        return not self._open

    @property
    def left(self) -> int:
        """The number of keys that are still to be run."""
        return len(self._open)


@dataclass(slots=True, kw_only=True)
class Plan(OpenRuns):
    """What is still to be run of an epoch. A unit is a batch, or the batches that a script takes together."""

    keys: Ints
    """The key of each unit in the order of the epoch: what decides its memory; -1: not known."""
    phases: Ints
    """The place of each key in the cycle of gradient accumulation at which such a unit may run."""
    weight: Ints
    """The weight of each key."""
    span: Ints
    """The longest dimension of each key."""
    _first: list[deque[int]] = field(default_factory=list)
    _again: list[deque[int]] = field(default_factory=list)
    _sample: list[int] = field(default_factory=list)
    """The first unit of each key."""
    _open: dict[int, int] = field(default_factory=dict)
    """The runs that are still wanted of each key."""

    def start(self, done: int, period: int) -> None:
        """Begin after so many units that were run in their own order."""
        counts = np.bincount(self.keys[done:][self.keys[done:] >= 0], minlength=len(self.weight))
        wanted = np.flatnonzero(counts)
        self._sample = [0] * len(self.weight)
        for unit in range(len(self.keys) - 1, -1, -1):
            if self.keys[unit] >= 0:
                self._sample[int(self.keys[unit])] = unit
        self._open = {int(key): 1 if counts[key] == 1 else 2 for key in wanted}
        by_weight = wanted[np.lexsort((-self.span[wanted], -self.weight[wanted]))]
        by_span = wanted[np.lexsort((-self.weight[wanted], -self.span[wanted]))][:2]
        spread = by_weight[_spread(len(by_weight))]
        heaviest = list(dict.fromkeys([*by_weight[:_PROBES].tolist(), *by_span.tolist(), *spread.tolist()]))
        often = [int(key) for key in wanted[np.argsort(-counts[wanted], kind="stable")] if counts[key] > 1]
        self._first = [deque(key for key in heaviest if self.phases[key] == phase) for phase in range(period)]
        self._again = [deque(key for key in often if self.phases[key] == phase) for phase in range(period)]

    def choose(self, phase: int) -> int:
        """Return the unit to run next; where nothing is left to run, the lightest."""
        for queue in (self._first[phase], self._again[phase]):
            if queue:
                return self._sample[queue.popleft()]
        there = (key for key in range(len(self.weight)) if self.keys[self._sample[key]] == key)
        mine = [key for key in there if self.phases[key] == phase]
        return self._sample[min(mine, key=lambda key: int(self.weight[key]))] if mine else 0

    def once_more(self, key: int) -> None:
        """A unit of the key did not ask for what the one before it asked."""
        self._open[key] = self._open.get(key, 0) + 1
        self._again[int(self.phases[key])].append(key)
