"""The epoch that a run goes through with its heaviest batches, where one is asked for (`ullage.predicting.epoch`)."""

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
    "no DataLoader fed the training, so --batches heaviest had no epoch to go through: the figures are of the steps "
    "that were run"
)
_RAN_OUT_BEFORE: Final = "memory ran out before the epoch could be gone through"
_WIDER: Final = 16
"""So many times the memory has the card on which steps are run out of their order: what is left of them there tells
nothing of the epoch, and must not make a step fail."""
_LEAST_SECONDS: Final = 20.0
_SHARE_OF_REPLAY: Final = 0.2


class EpochRun:
    """Follows the loader that feeds training, and puts the epoch together at the end."""

    def __init__(
        self, context: RunContext, observer: Observer, clear_history: Callable[[], None], finish: Callable[[], None]
    ) -> None:
        self._context, self._observer = context, observer
        self.use: EpochUse | None = None
        """The use of the epoch, once it is foreseen; None where no loader fed the training."""
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
        """Put the epoch together; with a note, where no loader fed the training or memory ran out before."""
        self._tell("replaying the epoch")
        self.watch.remove()
        self.use = self._use()
        if self.use is None:
            self._context.notes.append(_RAN_OUT_BEFORE if self._observer.ooms else _NO_LOADER)

    def _tell(self, text: str) -> None:
        self._context.channel.send("epoch", text=text)

    def _widen(self) -> int:
        """Give the cards more memory from now on; returns by how many bytes."""
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
        # What libraries took beside PyTorch.
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
    """Tell whether the run's peak lies in a step of the worst batch's shapes."""
    plan = watch.plan
    place = worst.index // watch.group
    for unit in watch.units:
        if unit.journal_start <= peak < unit.journal_end:
            return unit.place == place or (plan is not None and unit.key >= 0 and unit.key == int(plan.keys[place]))
    return False
