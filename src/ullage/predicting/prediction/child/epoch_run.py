"""The epoch that a run goes through with its heaviest batches, where one is asked for (`ullage.predicting.epoch`)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ullage.gpu.tracing.compiled import compiled_graphs
from ullage.gpu.tracing.journal import Journal
from ullage.predicting.epoch.watch import EpochWatch
from ullage.predicting.prediction.description.epoch import NO_LOADER, RAN_OUT_BEFORE, epoch_of, widen
from ullage.predicting.prediction.request import ChildRequest

if TYPE_CHECKING:
    from ullage.gpu.emulator.emulate import Emulation
    from ullage.predicting.epoch.use import EpochUse
    from ullage.predicting.prediction.observation.observer import Observer


class EpochRun:
    """Follows the loader that feeds training, and puts the epoch together at the end."""

    def __init__(
        self,
        request: ChildRequest,
        journal: Journal,
        observer: "Observer",
        emulation: "Emulation",
        *,
        clear_history: Callable[[], None],
        finish: Callable[[], None],
        progress: Callable[[str], None],
    ) -> None:
        self._request, self._journal, self._observer, self._emulation = request, journal, observer, emulation
        self._progress = progress
        self.watch = EpochWatch(
            clear_history=clear_history,
            backward_passes=lambda: len(observer.backward_lines),
            steps_ended=lambda: len(observer.step_ends),
            journal_length=journal.length,
            finish=finish,
            widen=lambda: widen(emulation),
            progress=progress,
            compiled_graphs=compiled_graphs,
            first_steps=request.steps,
            seconds=60 * request.minutes,
        )
        self.watch.install()

    def foresee(self, torch_version: str, note: Callable[[str], None]) -> "EpochUse | None":
        """Put the epoch together; None, with a note, where no loader fed the training or memory ran out before."""
        self._progress("replaying the epoch")
        self.watch.remove()
        observer = self._observer
        epoch = epoch_of(
            self.watch,
            self._journal.entries(),
            self._emulation,
            torch_version,
            ran_out=bool(observer.ooms),
            graphs=observer.graphs.captured,
            ranks=self._request.world_size or 1,
        )
        if epoch is None:
            note(RAN_OUT_BEFORE if observer.ooms else NO_LOADER)
        return epoch
