"""Choose the next batch to run: the heaviest first, then one batch of each shape, then a second batch of repeated
shapes.
"""

# A batch group is one batch, or several batches that a script uses together. Batch groups with equal memory requests
# have the same key.
#
# If torch.compile compiles graphs during the epoch, the result depends on the order of batches, and that order is kept.
# The graphs that exist at a position of the epoch follow from the shapes before it: a length that no graph accepts
# causes a new compilation, possibly for all lengths, and the graph for the first length alone is no longer used. So the
# memory requests of a batch group depend on its shapes and on the existing graphs. Batch groups run in the order of the
# epoch. A batch group is skipped if an equal one was run with the same graphs. After a new graph, all shapes are run
# again.

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ullage.predicting.epoch.requests import Ints

MOST_RUNS: Final = 3
_RUNS_IN_ORDER: Final = 2
# The shapes with the largest tensors run first. This is their number.
_PROBES: Final = 6


# The order covers the range evenly. If the time runs out, each number that was not run has a close neighbour that was.
def _spread(count: int) -> Ints:
    bits = max(1, (count - 1).bit_length())
    numbers = np.arange(1 << bits)
    mirrored = np.zeros_like(numbers)
    for bit in range(bits):
        mirrored |= ((numbers >> bit) & 1) << (bits - 1 - bit)
    return mirrored[mirrored < count]


class OpenRuns:
    """Counts how many more times a batch of each shape has to run, to confirm its memory requests."""

    __slots__ = ()
    _open: dict[int, int]

    def ran(self, key: int) -> None:
        if key in self._open:
            self._open[key] -= 1
            if self._open[key] <= 0:
                del self._open[key]

    @property
    def is_done(self) -> bool:
        """Whether all batch shapes were run as often as needed."""
        return not self._open

    @property
    def left(self) -> int:
        """The number of batch shapes that still need runs."""
        return len(self._open)


@dataclass(slots=True, kw_only=True)
class Plan(OpenRuns):
    """Chooses which iteration of the training loop to run next, beginning with the largest tensors."""

    keys: Ints
    """A number that identifies the batch shapes of each iteration, or -1 if the shapes are unknown.

    The iterations are in the order of the epoch.
    """
    # The position in the gradient accumulation cycle, for batches of each shape. They may run only at this position.
    phases: Ints
    weight: Ints
    """The number of elements in the largest tensor, for batches of each shape."""
    span: Ints
    """The size of the longest tensor dimension, for batches of each shape."""
    _first: list[deque[int]] = field(default_factory=list)
    _again: list[deque[int]] = field(default_factory=list)
    # The first batch group of each ID.
    _sample: list[int] = field(default_factory=list)
    # The number of runs that each ID still needs.
    _open: dict[int, int] = field(default_factory=dict)

    def start(self, done: int, period: int) -> None:
        """Choose which iterations of the epoch to run next.

        Args:
            done: the number of iterations that the script has already run.
            period: the number of iterations per optimizer step.
        """
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
        """Return the iteration to run next.

        If no shape needs more runs, this is the iteration with the smallest tensors.
        """
        for queue in (self._first[phase], self._again[phase]):
            if queue:
                return self._sample[queue.popleft()]
        there = (key for key in range(len(self.weight)) if self.keys[self._sample[key]] == key)
        mine = [key for key in there if self.phases[key] == phase]
        return self._sample[min(mine, key=lambda key: int(self.weight[key]))] if mine else 0

    def once_more(self, key: int) -> None:
        """Require another run of some batch shapes, because their last two runs made different memory requests."""
        self._open[key] = self._open.get(key, 0) + 1
        self._again[int(self.phases[key])].append(key)


class PlanInOrder(OpenRuns):
    """Chooses which iteration to run next, in the order of the epoch.

    torch.compile may compile other graphs if batches run in another order.
    """

    def __init__(self, *, keys: Ints, phases: Ints, weight: Ints, span: Ints) -> None:
        self.keys = keys
        """A number that identifies the batch shapes of each iteration, or -1 if the shapes are unknown.

        The numbers change when torch.compile compiles a graph.
        """
        # the same arrays as in `Plan`
        self.phases, self.weight, self.span = phases, weight, span
        self.is_hurried = False
        """Whether iterations with the largest tensors run first from now on, because little time is left."""
        self._kinds = len(weight)
        self.period = 1
        """The number of iterations of the training loop per optimizer step."""
        self._done, self._at = 0, -1
        # The last iteration in the epoch in which torch.compile compiled a graph.
        self._made_at = -1
        # The number of runs that each ID still needs.
        self._open: dict[int, int] = {}
        # The IDs of the batch shapes that have not been run yet.
        self._unseen: set[int] = set()

    def start(self, done: int, period: int) -> None:
        """Choose which iterations of the epoch to run next.

        Args:
            done: the number of iterations that the script has already run.
            period: the number of iterations per optimizer step.
        """
        self.period = period
        self._done, self._at = done, done - 1
        self._want()

    def _want(self) -> None:
        later = self.keys[max(self._done, self._made_at + 1) :]
        counts = np.bincount(later[later >= 0], minlength=len(self.weight))
        self._open = {int(key): min(_RUNS_IN_ORDER, int(counts[key])) for key in np.flatnonzero(counts)}
        self._unseen = set(self._open)

    def graph_made(self, unit: int) -> bool:
        """Record that torch.compile compiled a graph in an iteration. All later batch shapes then have to run again.

        Returns:
            Whether torch.compile would compile the same graph if all batches ran in the order of the epoch. This is
            certain if all earlier batch shapes were run without a compilation.
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
        """Return the iteration to run next. A gradient accumulation cycle is always completed first."""
        if phase:
            self._at = min(self._at + 1, len(self.keys) - 1)
            return self._at
        unit = self._heaviest() if self.is_hurried else self._next()
        self._at = unit - unit % self.period
        return self._at

    # After the end of the epoch, the search continues from its beginning.
    def _next(self) -> int:
        wanted = np.zeros(len(self.weight) + 1, np.bool_)  # the last entry stands for unknown keys
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
        self._unseen.discard(key)
        super().ran(key)

    def once_more(self, key: int) -> None:
        """Require another run of some batch shapes, because their last two runs made different memory requests."""
        if (self.keys[max(self._done, self._made_at + 1) :] == key).any():
            self._open[key] = self._open.get(key, 0) + 1
