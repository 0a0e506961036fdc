"""What a watched run tells of the whole epoch."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ullage.base.errors import UllageError
from ullage.predicting.epoch.composed import Composer, EpochLevels, levels_of_run
from ullage.predicting.epoch.form import Form, elements, longest, text_of
from ullage.predicting.epoch.plan import PlanInOrder
from ullage.predicting.epoch.requests import Ints, RequestRows, Template
from ullage.predicting.epoch.use import CURVE_POINTS, EpochUse, WorstBatch
from ullage.recorded.allocator.replay import ReplayDevice
from ullage.recorded.history import History, RecordedStacks
from ullage.recorded.rebuild import UNBOUNDED_BYTES
from ullage.recorded.rebuild.rebuild import settings_text_of
from ullage.recorded.settings import Settings, parse_settings, semantics_of

if TYPE_CHECKING:
    from ullage.predicting.epoch.watch import EpochWatch

_NONE: Final = np.zeros(0, np.int64)
_PARTS: Final = 8
_UNITS_A_PART: Final = 8
ELSEWHERE: Final = ("linux", "windows", "descending")
"""The placements that are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """What is known of the run that was watched; sizes in bytes."""

    torch_version: str
    placement: str
    room_bytes: int
    """The card's memory without what is not PyTorch's."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    ran_out: bool
    graphs: int
    """The number of CUDA graphs that were captured."""
    ranks: int = 1
    """The number of ranks of which the run was one."""


def use_of(watch: "EpochWatch", run: RunFigures, *, deadline: float) -> EpochUse | None:
    """Return what the epoch uses; None where no loader fed the training.

    Args:
        watch: removed.
        run: what the run itself used.
        deadline: the time (`time.monotonic`) at which to stop replaying.
    """
    if watch.feed is None or not watch.units:
        return None
    return _Foreseen(watch, run, deadline).use()


class _Foreseen:
    """One epoch, put together."""

    def __init__(self, watch: "EpochWatch", run: RunFigures, deadline: float) -> None:
        self._watch, self._run, self._deadline = watch, run, deadline
        self._notes = list(watch.notes)
        self._doubts: list[str] = []
        """The reasons why the figures may be wrong."""
        self._stood_in: set[int] = set()
        """The keys of whose shapes no step was run."""
        self._confirmed = 0
        self._replay_seconds = 0.0
        self._settings = _settings(watch.ledger.settings, run.torch_version)

    def use(self) -> EpochUse:
        """Put the epoch together, run it through, and say what came of it."""
        watch = self._watch
        places, templates = self._steps()
        try:
            levels = self._levels(templates)
        except UllageError as error:
            self._doubts.append(f"the epoch could not be replayed: {error}")
            levels = EpochLevels(
                allocated_bytes=_NONE, reserved_bytes=_NONE, start_allocated_bytes=_NONE, is_whole=False
            )
        self._judge(levels, len(places))
        done = len(levels.reserved_bytes)
        batches = places[:done]
        group = watch.group
        highest = np.maximum.accumulate(levels.reserved_bytes) if done else _NONE
        grown = np.flatnonzero(np.diff(highest, prepend=0) > 0)
        ran = {unit.place for unit in watch.units}
        stood = self._stand_ins(batches)
        return EpochUse(
            batches=done * group,
            items=self._items(batches),
            shapes=self._shapes(),
            steps_run=len(watch.units),
            batches_replayed=sum(1 for place in batches.tolist() if place not in ran) * group - stood,
            batches_stood_in=stood,
            shapes_confirmed=self._confirmed,
            is_foreseen=watch.is_foreseen,
            is_exact=not self._doubts and not stood and not (watch.scan is not None and watch.scan.notes),
            peak_allocated_bytes=int(levels.allocated_bytes.max(initial=0)),
            peak_reserved_bytes=int(levels.reserved_bytes.max(initial=0)),
            growths=max(0, len(grown) - 1),
            last_growth=int(batches[grown[-1]]) * group if len(grown) else None,
            runs_out_at=None if levels.ran_out_at is None else int(places[levels.ran_out_at]) * group,
            worst=self._worst(levels, batches),
            growth_bytes_per_batch=_growth(levels.start_allocated_bytes) // group,
            ties=levels.ties,
            elsewhere_bytes=self._elsewhere(levels, templates),
            allocated_bytes=_curve(levels.allocated_bytes),
            reserved_bytes=_curve(levels.reserved_bytes),
            notes=[*self._notes, *self._doubts],
        )

    # ---- the steps of the epoch

    def _steps(self) -> tuple[Ints, list[Template]]:
        """The units of the epoch by their places, and what each asks for."""
        watch = self._watch
        own = [unit.template for unit in watch.units[: watch.in_own_order]]
        if watch.plan is None:
            return np.arange(len(own)), own
        keys = watch.plan.keys
        # A library that counts batches ends its loop after as many as the epoch has, whichever they were.
        left_early = len(watch.units) + 1 + watch.lag < len(keys)
        if left_early and not watch.has_finished and not self._run.ran_out:
            keys = keys[: len(watch.units)]
            self._notes.append(f"the script left its loop after {len(watch.units) * watch.group:,} batches")
        steady, first = self._of_keys(keys)
        as_run = self._as_run()
        places, templates = [], []
        met: set[int] = set()
        for place, key in enumerate(keys.tolist()):
            if place < len(own):
                template = own[place]
            elif place in as_run:
                template = as_run[place]
            elif key in steady:
                template = first.get(key, steady[key]) if key not in met else steady[key]
            else:
                continue
            met.add(key)
            places.append(place)
            templates.append(template)
        return np.array(places, np.int64), templates

    def _as_run(self) -> dict[int, Template]:
        """What units asked for that were run with the graphs that there are at their place of the epoch."""
        watch, plan = self._watch, self._watch.plan
        if not isinstance(plan, PlanInOrder):
            return {}
        # Of those that were run out of their order the first made a graph, if any did.
        rightly = [unit for unit in watch.units if unit.place >= 0 and unit.key == plan.keys[unit.place]]
        return {unit.place: unit.template for unit in reversed(rightly)}

    def _of_keys(self, keys: Ints) -> tuple[dict[int, Template], dict[int, Template]]:
        """What a unit of each key asks for: always, and the first time where that differs."""
        watch, plan = self._watch, self._watch.plan
        assert plan is not None
        steady: dict[int, Template] = {}
        first: dict[int, Template] = {}
        later = keys[watch.in_own_order :]
        counts = np.bincount(later[later >= 0], minlength=len(plan.weight))
        unlike = unconfirmed = 0
        for key, known in watch.templates.items():
            steady[key] = known[-1]
            if len(known) > 1 and known[-1].is_like(known[-2]):
                self._confirmed += 1
                if not known[0].is_like(known[1]):
                    first[key] = known[0]
            elif len(known) > 1:
                unlike += 1
            elif counts[key] > 1:
                unconfirmed += 1
        if unlike:
            self._doubts.append(f"steps of {unlike:,} shapes did not ask for the same memory each time")
        if unconfirmed:
            self._doubts.append(f"{unconfirmed:,} shapes that come again were run once only")
        if steady:
            self._stand_in(np.flatnonzero(counts).tolist(), steady)
        return steady, first

    def _stand_in(self, wanted: Sequence[int], steady: dict[int, Template]) -> None:
        """Let the next heavier key that was run stand in for each that was not."""
        plan = self._watch.plan
        assert plan is not None
        met = list(steady)
        lighter = 0
        for key in wanted:
            if key in steady:
                continue
            self._stood_in.add(key)
            alike = [other for other in met if plan.phases[other] == plan.phases[key]] or met
            above = [other for other in alike if plan.weight[other] >= plan.weight[key]]
            lighter += not above
            chosen = min(above, key=lambda other: int(plan.weight[other])) if above else None
            steady[key] = steady[chosen if chosen is not None else max(alike, key=lambda o: int(plan.weight[o]))]
        if self._stood_in:
            self._notes.append(
                f"no step of {len(self._stood_in):,} shapes was run; the next heavier one stands for each"
                + (f", and for {lighter:,} a lighter one, as no heavier was run" if lighter else "")
            )

    # ---- levels

    def _levels(self, templates: Sequence[Template]) -> EpochLevels:
        run = self._run
        placement = {"wsl": "windows", "linux-host": "linux"}.get(run.placement, run.placement)
        device = ReplayDevice(total_bytes=run.room_bytes, placement=placement)
        if run.ran_out:
            self._doubts.append("memory ran out, so the rest of the epoch was not run")
        else:
            wider = self._watch.wider_bytes
            wide = replace(device, total_bytes=run.room_bytes + wider, others_bytes=wider)
            own = levels_of_run(RequestRows.joined(self._watch.all_requests), self._settings, wide)
            if own.peak.reserved_bytes != run.peak_reserved_bytes:
                self._doubts.append(
                    "a replay of what was run does not reserve what the run did, so reserved memory is an estimate"
                )
        return self._replayed(templates, device)

    def _replayed(self, templates: Sequence[Template], device: ReplayDevice) -> EpochLevels:
        """Return the levels of the whole epoch, and where it runs out of the card's memory."""
        began = time.monotonic()
        composer = Composer(settings=self._settings, device=device)
        levels = composer.levels(self._watch.before, templates, deadline=self._deadline)
        self._replay_seconds = time.monotonic() - began
        if levels.ran_out_at is None or device.total_bytes == UNBOUNDED_BYTES:
            return levels
        return replace(
            self._replayed(templates, replace(device, total_bytes=UNBOUNDED_BYTES)), ran_out_at=levels.ran_out_at
        )

    def _elsewhere(self, levels: EpochLevels, templates: Sequence[Template]) -> tuple[int, int] | None:
        """The least and the most that is reserved under every placement; None where there is no time to tell."""
        own = int(levels.reserved_bytes.max(initial=0))
        if not levels.ties:
            return own, own
        if time.monotonic() + len(ELSEWHERE) * self._replay_seconds > self._deadline:
            return None
        peaks = [own]
        for placement in ELSEWHERE:
            device = ReplayDevice(total_bytes=self._run.room_bytes, placement=placement)
            peaks.append(int(self._replayed(templates, device).reserved_bytes.max(initial=0)))
        return min(peaks), max(peaks)

    def _judge(self, levels: EpochLevels, units: int) -> None:
        """Add what is doubtful of the levels."""
        watch = self._watch
        doubts = {  # each with whether it is one
            f"it could not be told which blocks {levels.lost_frees:,} frees meant": levels.lost_frees,
            f"only the first {len(levels.reserved_bytes):,} of {units:,} batches were replayed in the time given": (
                not levels.is_whole
            ),
            f"{self._run.graphs:,} CUDA graphs were captured, whose memory is kept in pools of their own; a replay "
            "has one pool for all, so the figures are an estimate: --steps runs the batches themselves": (
                self._run.graphs
            ),
            f"torch.compile made {watch.graphs_out_of_order:,} graphs for batches that were run out of their "
            "order, from which it follows which it makes: the figures are an estimate; give it longer with "
            "--minutes, or run the batches themselves with --steps": watch.graphs_out_of_order,
            "what a collective used is let go by a thread that looks a few times a second, so that a step of one "
            "rank of several has no figures that are its own; they are an estimate": self._run.ranks > 1,
            "blocks were used on several streams; each counts until it was free for all of them": (
                watch.ledger.late_frees
            ),
            f"{watch.surprises:,} batches that were run did not look as foretold": watch.surprises,
            "some batches are not known": watch.plan is not None and (watch.plan.keys < 0).any(),
            "the epoch goes on after what was met": not watch.is_foreseen and not watch.has_ended,
        }
        self._doubts += [text for text, is_so in doubts.items() if is_so]
        left = len(watch.scan.order) % (watch.group * watch.period) if watch.scan is not None else 0
        if left and watch.group * watch.period > 1:
            self._notes.append(
                f"the epoch ends with {left:,} batches that make no whole step of the optimizer"
                + (", and are left out" if watch.group > 1 else "; as a step that ends early they may need another")
            )

    # ---- figures

    def _items(self, units: Ints) -> int:
        scan, group = self._watch.scan, self._watch.group
        if scan is None:
            return sum(_items_of(unit.form) for unit in self._watch.units[: self._watch.in_own_order])
        rows = scan.items[: len(scan.items) // group * group].reshape(-1, group).sum(axis=1)
        return int(rows[units].sum())

    def _shapes(self) -> int:
        if self._watch.scan is not None and self._watch.is_foreseen:
            return len(self._watch.scan.forms)
        return len({unit.form for unit in self._watch.units})

    def _stand_ins(self, units: Ints) -> int:
        plan = self._watch.plan
        if plan is None or not self._stood_in:
            return 0
        later = units[units >= self._watch.in_own_order]
        return int(np.isin(plan.keys[later], list(self._stood_in)).sum()) * self._watch.group

    def _worst(self, levels: EpochLevels, units: Ints) -> WorstBatch | None:
        watch, group = self._watch, self._watch.group
        if self._run.ran_out and watch.plan is not None:  # the batch whose step was running then
            assert watch.feed is not None
            following = watch.feed.handed[len(watch.units) * group :]
            if not following:
                return None
            return replace(self._batch(following[0] // group, self._run.peak_allocated_bytes), was_run=True)
        if not len(units):
            return None
        at = int(levels.allocated_bytes.argmax())
        peak, start = int(levels.allocated_bytes[at]), int(levels.start_allocated_bytes[at])
        worst = self._batch(int(units[at]), peak)
        reserved = int(levels.reserved_bytes.max())
        fits = reserved <= self._run.room_bytes and levels.ran_out_at is None
        room = self._run.room_bytes - start - min(reserved - peak, self._run.room_bytes // 4)
        each = (peak - start) / max(1, worst.items * group)
        if fits or not each:
            return worst
        return replace(worst, items_that_fit=max(0, min(worst.items - 1, int(room / each / group))))

    def _batch(self, unit: int, peak_allocated_bytes: int) -> WorstBatch:
        """Return the heaviest batch of a unit."""
        watch, index, scan = self._watch, unit * self._watch.group, self._watch.scan
        if scan is None or watch.plan is None:
            form = watch.units[unit].form
            items, alike, was_run = _items_of(form), sum(other.form == form for other in watch.units), True
        else:
            batches = range(index, index + watch.group)
            index = max(batches, key=lambda batch: elements(scan.forms[int(scan.shape[batch])]))
            shape = int(scan.shape[index])
            form, items, alike = scan.forms[shape], int(scan.items[index]), int((scan.shape == shape).sum())
            was_run = int(watch.plan.keys[unit]) not in self._stood_in
        return WorstBatch(
            index=index,
            items=items,
            longest=longest(form),
            shape=text_of(form),
            alike=alike,
            peak_allocated_bytes=peak_allocated_bytes,
            was_run=was_run,
        )


def _items_of(form: Form) -> int:
    return next((shape[0] for _, shape in form if shape), 0)


def _settings(recorded: Mapping[str, Any], torch_version: str) -> Settings:
    stacks = RecordedStacks(starts=_NONE, frames=_NONE, table=())
    history = History(
        device=0,
        action=_NONE,
        address=_NONE,
        size=_NONE,
        stream=_NONE,
        time_us=_NONE,
        stack=_NONE,
        stacks=stacks,
        segments=(),
        annotations=(),
        settings=recorded,
    )
    semantics = semantics_of(torch_version)
    return parse_settings(settings_text_of(history, alloc_conf=None, semantics=semantics), semantics=semantics)


def _growth(starts: Ints) -> int:
    """The growth a unit of what is left between units: of its floor in each part of the epoch, if all of them rise."""
    if len(starts) < _PARTS * _UNITS_A_PART:
        return 0
    floors = np.array([part.min() for part in np.array_split(starts[1:], _PARTS)], np.int64)
    if (np.diff(floors) <= 0).any():
        return 0
    return int((floors[-1] - floors[0]) * _PARTS // ((_PARTS - 1) * len(starts)))


def _curve(levels: Ints) -> list[int]:
    """The highest level in each of equal spans."""
    count = min(CURVE_POINTS, len(levels))
    return [int(span.max()) for span in np.array_split(levels, count)] if count else []
