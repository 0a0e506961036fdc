"""Which batch to run next: first the heaviest, then every shape once, then those that come again a second time.

Where torch.compile makes graphs as batches come, what their order decides is kept. Which graphs there are at a place of
the epoch follows from the shapes before it: a length that no graph admits has one made, for all lengths perhaps, and
what was made for the first length alone serves no more. So what a unit asks for is known by its shapes and by the
graphs that there were. Units are run in the order of the epoch, and those are passed by whose like was run with the
same graphs; after a graph was made all are wanted anew.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ullage.predicting.epoch.requests import Ints

MOST_RUNS: Final = 3
_RUNS_IN_ORDER: Final = 2
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
    """How often units of each key are still to be run; a unit is a batch, or those that a script takes together."""

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
    """What is still to be run of an epoch, the heaviest first."""

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


class PlanInOrder(OpenRuns):
    """What is still to be run of an epoch in its order, as torch.compile makes graphs."""

    def __init__(self, *, keys: Ints, phases: Ints, weight: Ints, span: Ints) -> None:
        self.keys = keys
        """The key of each unit in the order of the epoch: its shapes and the graphs that there are; -1: not known."""
        self.phases, self.weight, self.span = phases, weight, span
        """The place in the cycle, the weight and the longest dimension of each key."""
        self.is_hurried = False
        """The heaviest come first now, as there is no time for all."""
        self._kinds = len(weight)
        self.period = 1
        """The number of units to a step of the optimizer."""
        self._done, self._at = 0, -1
        self._made_at = -1
        """The last place at which a graph was made."""
        self._open: dict[int, int] = {}
        """The runs that are still wanted of each key."""
        self._unseen: set[int] = set()
        """Keys of which no unit was run yet."""

    def start(self, done: int, period: int) -> None:
        """Begin after so many units that were run in their own order."""
        self.period = period
        self._done, self._at = done, done - 1
        self._want()

    def _want(self) -> None:
        """Want every key that comes after the last graph was made."""
        later = self.keys[max(self._done, self._made_at + 1) :]
        counts = np.bincount(later[later >= 0], minlength=len(self.weight))
        self._open = {int(key): min(_RUNS_IN_ORDER, int(counts[key])) for key in np.flatnonzero(counts)}
        self._unseen = set(self._open)

    def graph_made(self, unit: int) -> bool:
        """A graph was made while a unit ran: from the next on all are wanted anew.

        Returns:
            Whether the epoch in its order makes it there too: every shape before it was run, and made none.
        """
        if unit <= self._made_at:
            return False
        before = self.keys[max(self._done, self._made_at + 1) : unit]
        is_in_order = not np.isin(before, list(self._unseen)).any()
        self._made_at = unit
        later = self.keys[unit + 1 :]
        later[later >= 0] = later[later >= 0] % self._kinds + len(self.weight)
        for name in ("phases", "weight", "span"):
            of_kinds = getattr(self, name)
            setattr(self, name, np.concatenate([of_kinds, of_kinds[: self._kinds]]))
        self._want()
        return is_in_order

    def choose(self, phase: int) -> int:
        """Return the unit to run next: the rest of a cycle, or the next cycle in which something is wanted."""
        if phase:
            self._at = min(self._at + 1, len(self.keys) - 1)
            return self._at
        unit = self._heaviest() if self.is_hurried else self._next()
        self._at = unit - unit % self.period
        return self._at

    def _next(self) -> int:
        """The next unit in the order of the epoch that is wanted; behind the last of all again from the first."""
        wanted = np.zeros(len(self.weight) + 1, np.bool_)  # the last: keys that are not known
        wanted[list(self._open)] = True
        places = np.flatnonzero(wanted[self.keys])
        places = places[places > self._made_at]
        if not len(places):
            return max(0, self._at)
        after = int(np.searchsorted(places, self._at, side="right"))
        return int(places[after if after < len(places) else 0])

    def _heaviest(self) -> int:
        key = max(self._open, key=lambda each: int(self.weight[each]), default=-1)
        places = np.flatnonzero(self.keys == key)
        places = places[places > self._made_at]
        return int(places[0]) if len(places) else max(0, self._at)

    def ran(self, key: int) -> None:
        """A unit of the key was run."""
        self._unseen.discard(key)
        super().ran(key)

    def once_more(self, key: int) -> None:
        """A unit of the key did not ask for what the one before it asked."""
        if (self.keys[max(self._done, self._made_at + 1) :] == key).any():
            self._open[key] = self._open.get(key, 0) + 1
