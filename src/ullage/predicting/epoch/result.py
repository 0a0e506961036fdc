"""Compute the memory use of a whole epoch from the steps that were run."""

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
"""The ways in which the GPU driver may place memory segments, for each of which the epoch is replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Facts about the run of the script that are needed to predict the epoch."""

    torch_version: str
    placement: str
    room_bytes: int
    """The GPU memory that is available to PyTorch's allocator, in bytes."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    ran_out: bool
    graphs: int
    """The number of CUDA graphs that the run captured."""
    ranks: int = 1
    """The number of ranks in the training job."""


def use_of(watch: "EpochWatch", run: RunFigures, *, deadline: float) -> EpochUse | None:
    """Return the memory use of the epoch, or None if no data loader provides the training batches.

    Args:
        watch: the object that watched the run, after its hooks have been removed.
        run: figures of the run itself.
        deadline: the time (`time.monotonic`) at which to stop replaying.
    """
    if watch.feed is None or not watch.units:
        return None
    return _Foreseen(watch, run, deadline).use()


class _Foreseen:
    def __init__(self, watch: "EpochWatch", run: RunFigures, deadline: float) -> None:
        self._watch, self._run, self._deadline = watch, run, deadline
        self._notes = list(watch.notes)
        # Why the predicted memory use of the epoch may be wrong.
        self._doubts: list[str] = []
        # The IDs of batch shapes for which no step was run.
        self._stood_in: set[int] = set()
        self._confirmed = 0
        self._replay_seconds = 0.0
        self._settings = _settings(watch.ledger.settings, run.torch_version)

    def use(self) -> EpochUse:
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
        watch = self._watch
        own = [unit.template for unit in watch.units[: watch.in_own_order]]
        if watch.plan is None:
            return np.arange(len(own)), own
        keys = watch.plan.keys
        # A library that counts batches ends its loop after as many batches as the epoch has, regardless of their order.
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

    # These iterations were run with the compiled graphs that the epoch has at their position.
    def _as_run(self) -> dict[int, Template]:
        watch, plan = self._watch, self._watch.plan
        if not isinstance(plan, PlanInOrder):
            return {}
        # If several units ran at one position, the first is used, because it compiled the graph, if any did.
        rightly = [unit for unit in watch.units if unit.place >= 0 and unit.key == plan.keys[unit.place]]
        return {unit.place: unit.template for unit in reversed(rightly)}

    def _of_keys(self, keys: Ints) -> tuple[dict[int, Template], dict[int, Template]]:
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
            self._doubts.append(f"steps of {unlike:,} shapes did not make the same memory requests each time")
        if unconfirmed:
            self._doubts.append(f"{unconfirmed:,} shapes that occur several times were run only once")
        if steady:
            self._stand_in(np.flatnonzero(counts).tolist(), steady)
        return steady, first

    # Batch shapes that were not run get the memory requests of the next larger shapes.
    def _stand_in(self, wanted: Sequence[int], steady: dict[int, Template]) -> None:
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
                f"for {len(self._stood_in):,} shapes no step was run; the next heavier shape that was run is used "
                "for each"
                + (f" (for {lighter:,} shapes a lighter one, because no heavier shape was run)" if lighter else "")
            )

    # ---- memory levels

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
                    "a replay of the steps that were run does not reserve as much as the run did, so reserved "
                    "memory is an estimate"
                )
        return self._replayed(templates, device)

    def _replayed(self, templates: Sequence[Template], device: ReplayDevice) -> EpochLevels:
        began = time.monotonic()
        composer = Composer(settings=self._settings, device=device)
        levels = composer.levels(self._watch.before, templates, deadline=self._deadline)
        self._replay_seconds = time.monotonic() - began
        if levels.ran_out_at is None or device.total_bytes == UNBOUNDED_BYTES:
            return levels
        return replace(
            self._replayed(templates, replace(device, total_bytes=UNBOUNDED_BYTES)), ran_out_at=levels.ran_out_at
        )

    # None if not enough time is left.
    def _elsewhere(self, levels: EpochLevels, templates: Sequence[Template]) -> tuple[int, int] | None:
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
        watch = self._watch
        doubts = {  # each reason, with whether it applies
            f"the blocks of {levels.lost_frees:,} frees are unknown": levels.lost_frees,
            f"only the first {len(levels.reserved_bytes):,} of {units:,} batches were replayed within the time limit": (
                not levels.is_whole
            ),
            f"the run captured {self._run.graphs:,} CUDA graphs, which use private memory pools; the replay uses one "
            "pool for everything, so the figures are an estimate. To run the batches themselves, use --steps": (
                self._run.graphs
            ),
            f"torch.compile compiled {watch.graphs_out_of_order:,} graphs for batches that were run out of order, and "
            "the order decides which graphs it compiles. The figures are an estimate; allow more time with --minutes, "
            "or run the batches themselves with --steps": watch.graphs_out_of_order,
            "a thread that polls a few times per second frees the memory of collectives, so the figures of a single "
            "step of one rank of several are an estimate": self._run.ranks > 1,
            "blocks were used on several streams; each block counts until all of these streams had finished with it": (
                watch.ledger.late_frees
            ),
            f"{watch.surprises:,} batches that were run did not have the predicted shapes": watch.surprises,
            "the shapes of some batches are unknown": watch.plan is not None and (watch.plan.keys < 0).any(),
            "the epoch has more batches than were run": not watch.is_foreseen and not watch.has_ended,
        }
        self._doubts += [text for text, is_so in doubts.items() if is_so]
        left = len(watch.scan.order) % (watch.group * watch.period) if watch.scan is not None else 0
        if left and watch.group * watch.period > 1:
            self._notes.append(
                f"the last {left:,} batches of the epoch are fewer than a full optimizer step needs"
                + (
                    ", and are left out"
                    if watch.group > 1
                    else (
                        "; if the script takes a step with them anyway, that step may need a different amount of memory"
                    )
                )
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
        if self._run.ran_out and watch.plan is not None:  # the batch whose step was running when memory ran out
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


# 0 unless allocated memory grows in every part of the epoch.
def _growth(starts: Ints) -> int:
    if len(starts) < _PARTS * _UNITS_A_PART:
        return 0
    floors = np.array([part.min() for part in np.array_split(starts[1:], _PARTS)], np.int64)
    if (np.diff(floors) <= 0).any():
        return 0
    return int((floors[-1] - floors[0]) * _PARTS // ((_PARTS - 1) * len(starts)))


def _curve(levels: Ints) -> list[int]:
    count = min(CURVE_POINTS, len(levels))
    return [int(span.max()) for span in np.array_split(levels, count)] if count else []
