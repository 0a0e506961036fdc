"""Run a few steps of a training loop in a chosen order, and predict the memory use of the epoch.

The first steps run in the script's order. Then the heaviest batch runs, and one batch of every other shape.

A second batch of each repeated shape checks that equal shapes make equal memory requests.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from ullage.predicting.epoch.form import Form, elements, form_of, longest
from ullage.predicting.epoch.ledger import Ledger
from ullage.predicting.epoch.loader import Feed, LoaderHooks, Source
from ullage.predicting.epoch.plan import MOST_RUNS, Plan, PlanInOrder
from ullage.predicting.epoch.requests import EMPTY_CACHE, OTHERS_GONE, RequestRows, Template, TemplateMaker
from ullage.predicting.epoch.scan import Scan, go_through

_SHARE_OF_GOING_THROUGH: Final = 0.5
# After this share of the time limit, no more steps run. The rest of the time is for the replay of the epoch.
_SHARE_OF_RUNNING: Final = 0.8
# After this share of the time limit, batches with the largest tensors run first, in place of the epoch's order.
_SHARE_OF_ORDER: Final = 0.5
_MOST_BATCHES: Final = 20_000_000


@dataclass(slots=True, eq=False)
class Unit:
    """An iteration of the training loop that was run."""

    place: int
    """The position of the iteration in the epoch, or -1 if unknown."""
    template: Template
    form: Form
    journal_start: int
    journal_end: int
    graphs: int
    """The number of graphs that torch.compile compiled in this iteration."""
    key: int = -1


class EpochWatch:
    """Watches a run of the script to predict the memory use of its epoch."""

    def __init__(
        self,
        *,
        clear_history: Callable[[], None],
        backward_passes: Callable[[], int],
        steps_ended: Callable[[], int],
        journal_length: Callable[[], int],
        finish: Callable[[], None],
        widen: Callable[[], int],
        progress: Callable[[str], None],
        compiled_graphs: Callable[[], int],
        first_steps: int,
        seconds: float,
    ) -> None:
        self.ledger = Ledger(clear_history)
        self.notes: list[str] = []
        self.units: list[Unit] = []
        self.before = RequestRows.joined([])
        """The memory requests before the first step."""
        self.all_requests: list[RequestRows] = []
        self.scan: Scan | None = None
        self.plan: Plan | PlanInOrder | None = None
        self.group = 1
        """The number of batches that one iteration of the training loop fetches."""
        self.period = 1
        """The number of iterations of the training loop per optimizer step."""
        self.feed: Feed | None = None
        self.templates: dict[int, list[Template]] = {}
        """Maps each batch shape to the memory requests of the steps with this shape, except the first step."""
        self.in_own_order = 0
        """The number of iterations at the beginning of the run that used the script's own batch order."""
        self.surprises = 0
        self.has_ended = self.is_foreseen = False
        """Whether the data loader has no batch left, and whether all batches of the epoch are known in advance."""
        self.seconds = seconds
        self.began = 0.0
        self._backward_passes, self._steps_ended = backward_passes, steps_ended
        self._journal_length, self._finish, self._progress = journal_length, finish, progress
        self._first_steps, self._widen = first_steps, widen
        self._compiled_graphs, self._graphs = compiled_graphs, 0
        self.graphs_out_of_order = 0
        """The number of compiled graphs that may differ in a real epoch, in which batches run in another order."""
        self.wider_bytes = 0
        """The bytes by which ullage enlarges the emulated GPU while it runs batches out of order."""
        self._hooks = LoaderHooks(self)
        self._source: Source | None = None
        # The intervals between two calls of `next`, each with the loader, the number of the call, and the memory
        # requests.
        self._cuts: list[tuple[Source | None, int, list[RequestRows], int, int]] = []
        self._open: tuple[Source | None, int, list[RequestRows], int] = (None, 0, [], 0)
        self._maker: TemplateMaker | None = None
        self.lag = 0
        """The number of batches that the script fetches before it uses the first one."""
        self._pending: list[RequestRows] = []
        self._pending_start = self._rest = 0
        # The shapes of every fetched batch, in order.
        self._forms: list[Form] = []
        # The number of optimizer steps that had ended after each iteration.
        self._stepped: list[int] = []
        self._choice: int | None = None
        self._has_planned = False
        self.has_finished = False
        """Whether ullage ended the run because it needed no more steps."""
        self._empty_cache: Any = None

    # ---- called by the run

    def install(self) -> None:
        """Begin watching."""
        self._hooks.install()
        binding: Any = torch._C
        self._empty_cache = binding._cuda_emptyCache

        def empty_cache() -> None:
            self._open[2].extend([self._take(), EMPTY_CACHE])
            self.all_requests.append(EMPTY_CACHE)
            self._empty_cache()

        binding._cuda_emptyCache = empty_cache

    def leave(self) -> None:
        """Stop watching the data loaders in a forked child process."""
        self._hooks.remove()

    def remove(self) -> None:
        """Remove the hooks from the data loaders and from `torch.cuda.empty_cache`."""
        self._hooks.remove()
        if self._empty_cache is not None:
            binding: Any = torch._C
            binding._cuda_emptyCache = self._empty_cache
            self._empty_cache = None
            self._take()

    def wants_more(self, step: int) -> bool:
        """Return whether the script should run more steps than requested."""
        return self.feed is not None or (self._open[0] is not None and step <= self._first_steps)

    def step_ended(self) -> None:
        """Handle the end of an optimizer step, which may be the last step of the run."""
        is_left_long_ago = self.feed is not None and time.monotonic() - self.began > self.seconds
        if is_left_long_ago and not self.has_finished:
            self._end()
        if self._rest and self._source is not None:
            call = self._open[1]
            self._cut(self._source)
            self._close(call, self._cuts.pop())
            self._open = (self._source, call + 1, [], self._open[3])
            self._rest -= 1
            if not self._rest:
                self._end()

    def _end(self) -> None:
        self.has_finished = True
        self._finish()

    # ---- called by the loader

    def before_next(self, source: Source) -> None:
        """Read the memory requests of the iteration that has just ended."""
        if self._source is not None and source is not self._source:
            return  # an evaluation loop inside a step is part of that step
        passes = self._backward_passes()
        is_training = source.calls > 0 and passes > source.backward_passes
        self._cut(source)
        if self._source is None and is_training:
            self._engage(source, passes - source.backward_passes)
        elif self._source is source:
            self._close(source.calls - 1, self._cuts.pop())
        source.backward_passes = passes
        if self._source is source:
            self._look_ahead()

    def ended(self, source: Source) -> None:
        """Handle the end of the epoch, or of the batches that were chosen to run."""
        if self._source is None and source.calls > 1 and self._backward_passes() > source.backward_passes:
            self._cut(source)
            self._engage(source, self._backward_passes() - source.backward_passes)
        if self._source is source:
            self.has_ended = True
            self._rest = self.lag
            if not self._rest:
                self._end()

    def before_handing_out(self, feed: Feed) -> None:
        """End the run if the script begins another epoch.

        A script that counts its batches may do this before the data loader is exhausted.
        """
        own = self.feed
        if own is None or feed is own or feed.handed or self.has_finished:
            return
        mine, other = own.loader, feed.loader
        is_like = type(other.sampler) is type(mine.sampler) and other.batch_size == mine.batch_size
        if other is mine or (other.dataset is mine.dataset and is_like):
            self._end()

    def delivered(self, feed: Feed, batch: Any) -> None:
        """Store the shapes of a fetched batch, and count it if they differ from the predicted shapes."""
        if self.feed is not None and feed is not self.feed:
            return
        if feed.delivered == 1 and self.feed is None:
            self._forms = []
        form = form_of(batch)
        self._forms.append(form)
        if self.scan is not None and feed is self.feed:
            place = feed.handed[feed.delivered - 1]
            shape = int(self.scan.shape[place]) if place < len(self.scan.shape) else -1
            self.surprises += shape >= 0 and self.scan.forms[shape] != form

    # ---- steps

    def _take(self) -> RequestRows:
        requests = self.ledger.take()
        self.all_requests.append(requests)
        return requests

    def _cut(self, source: Source) -> None:
        began_by, call, pieces, start = self._open
        now = self._journal_length()
        pieces.append(self._take())
        self._cuts.append((began_by, call, pieces, start, now))
        self._open = (source, source.calls, [], now)

    # The first backward pass after a call of `next` shows that this data loader feeds the training loop.
    def _engage(self, source: Source, passes: int) -> None:
        assert source.feed is not None
        self._source, self.feed, self.began = source, source.feed, time.monotonic()
        calls = source.calls
        if calls > 1 and passes >= calls:
            self.group = calls
        else:
            self.lag = calls - 1
        cuts, self._cuts = self._cuts, []
        used = (number for number, cut in enumerate(cuts) if cut[0] is source and cut[1] >= self.lag)
        first = next(used, len(cuts))
        before = [piece for cut in cuts[:first] for piece in cut[2]]
        self.before = RequestRows.joined(before)
        first_block = sum(int((piece.op == 0).sum()) for piece in before)
        self._maker = TemplateMaker(self.ledger.alive, first_block)
        stretches: list[list[Any]] = []
        for cut in cuts[first:]:
            if cut[0] is source or not stretches:
                stretches.append([cut[1], list(cut[2]), cut[3], cut[4]])
            else:
                stretches[-1][1] += cut[2]
                stretches[-1][3] = cut[4]
        for call, pieces, start, end in stretches:
            self._close(call, (source, call, pieces, start, end))

    def _close(self, call: int, cut: tuple[Source | None, int, list[RequestRows], int, int]) -> None:
        assert self._maker is not None
        assert self.feed is not None
        _, _, pieces, start, end = cut
        if not self._pending:
            self._pending_start = start
        self._pending += pieces
        if (call + 1) % self.group:
            return
        number = len(self.units)
        template = self._maker.template(RequestRows.joined(self._pending))
        self._pending = []
        first = number * self.group
        handed = self.feed.handed[first : first + self.group]
        aligned = bool(handed) and handed[0] % self.group == 0
        place = handed[0] // self.group if aligned else -1
        form = tuple(itertools.chain.from_iterable(self._forms[first : first + self.group]))
        graphs = self._compiled_graphs()
        unit = Unit(place, template, form, self._pending_start, end, graphs - self._graphs)
        self._graphs = graphs
        self.units.append(unit)
        self._stepped.append(self._steps_ended())
        if place == number and number == self.in_own_order:
            self.in_own_order += 1
        if self.plan is not None:
            self._learn(unit)

    def _learn(self, unit: Unit) -> None:
        plan = self.plan
        assert plan is not None
        if not 0 <= unit.place < len(plan.keys) or plan.keys[unit.place] < 0:
            self.graphs_out_of_order += unit.graphs
            return
        unit.key = int(plan.keys[unit.place])
        if unit.graphs and isinstance(plan, PlanInOrder):
            self.graphs_out_of_order += 0 if plan.graph_made(unit.place) else unit.graphs
            return
        self.graphs_out_of_order += unit.graphs
        known = self.templates.setdefault(unit.key, [])
        if not known or not known[-1].is_like(unit.template) or len(known) < MOST_RUNS:
            known.append(unit.template)
        plan.ran(unit.key)
        is_odd = len(known) > 1 and not known[-1].is_like(known[-2])
        if is_odd and len(known) < MOST_RUNS:
            plan.once_more(unit.key)

    # ---- the next batch

    def _look_ahead(self) -> None:
        if time.monotonic() - self.began > self.seconds * _SHARE_OF_RUNNING:
            if self.plan is not None and not self.plan.is_done:
                self.notes.append(
                    f"{self.plan.left:,} shapes were run less often than needed to confirm their memory requests "
                    "within the time limit; allow more time with --minutes"
                )
            self._end()
        elif self.plan is not None:
            if self.plan.is_done:
                self._end()
                return
            if isinstance(self.plan, PlanInOrder) and time.monotonic() - self.began > self.seconds * _SHARE_OF_ORDER:
                self.plan.is_hurried = True
            if len(self.units) % 10 == 0:
                self._progress(f"step {len(self.units):,}: {self.plan.left:,} shapes still to run")
        elif self._steps_ended() >= self._first_steps and not self._has_planned:
            self._has_planned = True
            self._make_plan()

    def _make_plan(self) -> None:
        feed = self.feed
        assert feed is not None
        order = self._whole_order(feed)
        if order is None:
            return
        self._progress(f"inspecting {len(order):,} batches")
        deadline = self.began + self.seconds * _SHARE_OF_GOING_THROUGH
        try:
            self.scan = go_through(feed.loader, order, deadline=deadline, progress=self._progress)
        except Exception as error:  # the script's data set or collate function raised it
            feed.own = iter(order[len(feed.given) :])
            self.notes.append(
                f"the data could not be inspected in advance ({type(error).__name__}: {error}); the figures are those "
                "of the batches that were run within the time limit"
            )
            return
        self.notes += self.scan.notes
        self.is_foreseen = True
        self.period = self._found_period()
        kind = PlanInOrder if self._graphs else Plan
        self.plan = _plan_of(kind, self.scan, self.group, self.period)
        feed.own = iter(order[len(feed.given) :])
        done = -(-len(feed.handed) // self.group)
        self.plan.start(done, self.period)
        for unit in self.units[1:]:  # the first step creates the optimizer's state
            self._learn(unit)
        if done < len(self.plan.keys):
            self._open[2].append(self._take())
            self.wider_bytes = self._widen()
            self.all_requests.append(OTHERS_GONE)
            feed.choose = lambda: self._chosen(feed)
        else:  # all batches have been returned by now, and run in their own order
            self.plan = None

    def _whole_order(self, feed: Feed) -> list[Any] | None:
        loader = feed.loader
        if isinstance(loader.dataset, torch.utils.data.IterableDataset):
            self.notes.append(
                "an IterableDataset cannot be inspected in advance: the figures are those of the batches that were "
                "run within the time limit, in their order"
            )
            return None
        try:
            most = len(loader)
        except (TypeError, NotImplementedError):  # a sampler whose number of batches is unknown
            most = _MOST_BATCHES
        state = torch.get_rng_state()
        rest = list(itertools.islice(feed.own, max(0, most - len(feed.given))))
        torch.set_rng_state(state)
        return [*feed.given, *rest]

    def _found_period(self) -> int:
        ends = [number for number, (now, before) in enumerate(itertools.pairwise([0, *self._stepped])) if before > now]
        if len(ends) < 2:
            return (ends[0] + 1) if ends else 1
        return max(1, ends[1] - ends[0])

    def _chosen(self, feed: Feed) -> Any:
        plan, scan = self.plan, self.scan
        assert plan is not None
        assert scan is not None
        number = len(feed.handed)
        within = number % self.group
        if not within:
            self._choice = plan.choose((number // self.group) % self.period)
        # A unit that began in the script's order also ends in that order.
        place = number if self._choice is None else self._choice * self.group + within
        feed.handed.append(place)
        return scan.order[place]


def _plan_of(kind: type[Plan | PlanInOrder], scan: Scan, group: int, period: int) -> Plan | PlanInOrder:
    units = len(scan.shape) // group
    shapes = scan.shape[: units * group].reshape(units, group)
    phase = np.arange(units) % period
    rows = np.concatenate([shapes, phase[:, None]], axis=1)
    is_known = (shapes >= 0).all(axis=1)
    keys = np.full(units, -1, np.int64)
    distinct, numbers = np.unique(rows[is_known], axis=0, return_inverse=True)
    keys[is_known] = numbers.reshape(-1)
    weight = np.array([elements(form) for form in scan.forms], np.int64)
    span = np.array([longest(form) for form in scan.forms], np.int64)
    return kind(
        keys=keys,
        phases=distinct[:, -1],
        weight=weight[distinct[:, :-1]].max(axis=1),
        span=span[distinct[:, :-1]].max(axis=1),
    )
