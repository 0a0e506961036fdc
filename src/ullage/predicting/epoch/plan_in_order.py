"""Which batch to run next where torch.compile makes graphs as batches come: what their order decides is kept.

Which graphs there are at a place of the epoch follows from the shapes before it: a length that no graph admits has one
made, for all lengths perhaps, and what was made for the first length alone serves no more. So what a unit asks for is
known by its shapes and by the graphs that there were. Units are run in the order of the epoch, and those are passed by
whose like was run with the same graphs; after a graph was made all are wanted anew.
"""

from typing import Final

import numpy as np

from ullage.predicting.epoch.plan import OpenRuns
from ullage.predicting.epoch.requests import Ints

_RUNS: Final = 2


class PlanInOrder(OpenRuns):
    """What is still to be run of an epoch. A unit is a batch, or the batches that a script takes together."""

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
        self._open = {int(key): min(_RUNS, int(counts[key])) for key in np.flatnonzero(counts)}
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
