"""Run the heaviest batches of an epoch to predict the memory use of the whole epoch."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ullage.gpu.emulator import library
from ullage.gpu.tracing.compiled import compiled_graphs
from ullage.predicting.epoch.result import RunFigures, use_of
from ullage.predicting.epoch.use import EpochUse, WorstBatch
from ullage.predicting.epoch.watch import EpochWatch
from ullage.predicting.prediction.child.context import RunContext
from ullage.predicting.prediction.measurement import trace
from ullage.predicting.prediction.observation.observer import Observer

_NO_LOADER: Final = (
    "the training did not use a DataLoader, so that --batches heaviest had no epoch to predict: the figures are for "
    "the steps that were run"
)
_RAN_OUT_BEFORE: Final = "memory ran out before the epoch could be predicted"
# With the heaviest batches first, memory could run out although it would not run out in the epoch's real order.
_WIDER: Final = 16
_LEAST_SECONDS: Final = 20.0
_SHARE_OF_REPLAY: Final = 0.2


class EpochRun:
    """Observe the DataLoader of the training, and predict the memory use of the epoch."""

    def __init__(
        self, context: RunContext, observer: Observer, clear_history: Callable[[], None], finish: Callable[[], None]
    ) -> None:
        self._context, self._observer = context, observer
        self.use: EpochUse | None = None
        """The predicted memory use of the epoch. It is None before the end of the run or without a DataLoader."""
        self.watch = EpochWatch(
            clear_history=clear_history,
            backward_passes=lambda: len(observer.backward_lines),
            steps_ended=lambda: len(observer.step_ends),
            journal_length=context.journal.length,
            finish=finish,
            widen=self._widen,
            progress=self._tell,
            compiled_graphs=compiled_graphs,
            first_steps=context.request.steps,
            seconds=60 * context.request.options["minutes"],
        )
        self.watch.install()

    def foresee(self) -> None:
        """Predict the memory use of the epoch. Add a note to the report if this is not possible."""
        self._tell("replaying the epoch")
        self.watch.remove()
        self.use = self._use()
        if self.use is None:
            self._context.notes.append(_RAN_OUT_BEFORE if self._observer.ooms else _NO_LOADER)

    def _tell(self, text: str) -> None:
        self._context.channel.send("epoch", text=text)

    def _widen(self) -> int:
        emulation = self._context.emulation
        figures = dict(emulation.figures)
        total = figures["total_memory_bytes"]
        figures["total_memory_bytes"] = _WIDER * total
        library.change_cards(emulation.gpu, figures, count=emulation.count)
        return (_WIDER - 1) * total

    def _use(self) -> EpochUse | None:
        context, observer, watch = self._context, self._observer, self.watch
        device, emulation = watch.ledger.device, context.emulation
        levels = trace.levels_of(context.journal.entries(), device)
        reserved = int(levels.reserved.max(initial=0))
        # The memory that libraries took outside PyTorch's allocator.
        beside = max(0, library.used_peak_bytes(device) - emulation.context_bytes - reserved)
        figures = RunFigures(
            torch_version=context.torch.version,
            placement=emulation.placement,
            room_bytes=emulation.total_memory_bytes - emulation.context_bytes - beside,
            peak_allocated_bytes=int(levels.allocated.max(initial=0)),
            peak_reserved_bytes=reserved,
            ran_out=bool(observer.ooms),
            graphs=observer.graphs.captured,
            ranks=context.request.options["world_size"] or 1,
        )
        deadline = time.monotonic() + max(_LEAST_SECONDS, watch.seconds * _SHARE_OF_REPLAY)
        use = use_of(watch, figures, deadline=deadline)
        if use is None or use.worst is None or not len(levels.index):
            return use
        peak = int(levels.index[int(levels.allocated.argmax())])
        return replace(use, worst=replace(use.worst, is_the_peak_of_the_run=_is_within(watch, use.worst, peak)))


def _is_within(watch: EpochWatch, worst: WorstBatch, peak: int) -> bool:
    plan = watch.plan
    place = worst.index // watch.group
    for unit in watch.units:
        if unit.journal_start <= peak < unit.journal_end:
            return unit.place == place or (plan is not None and unit.key >= 0 and unit.key == int(plan.keys[place]))
    return False
