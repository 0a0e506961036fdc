"""A callback that watches memory, and logs it with Lightning's loggers."""

from typing import Any, Final

from ullage.integrations.framework import framework
from ullage.integrations.memory import WatchesMemory

_lightning: Final = framework("lightning.pytorch", "pytorch_lightning")


class MemoryCallback(WatchesMemory, _lightning.Callback):  # type: ignore[misc,name-defined]  # which of two, shows when it runs
    """Logs memory as often as the Trainer logs, and warns of each leak once.

    Example:
        trainer = lightning.Trainer(callbacks=[MemoryCallback()])

    Values go to the loggers directly. `self.log` would make single-precision tensors of them on the card: these would
    take memory themselves, and be wrong by 64 bytes in each GiB.
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._watch.start(trainer.strategy.root_device)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._watch.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._watch.stop()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._watch.step()
        if trainer._logger_connector.should_update_logs:
            self._log(trainer, "train")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._watch.enter_phase("validate")

    def on_validation_batch_end(self, *_: Any) -> None:
        self._watch.step()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._log(trainer, "validate")
        self._watch.leave_phase()

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self._watch.enter_phase("test")

    def on_test_batch_end(self, *_: Any) -> None:
        self._watch.step()

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._log(trainer, "test")
        self._watch.leave_phase()

    def _log(self, trainer: Any, phase: str) -> None:
        values = self._watch.scalars(f"memory/{phase}/") if trainer.loggers else {}
        for logger in trainer.loggers if values else ():
            logger.log_metrics(values, step=trainer.fit_loop.epoch_loop._batches_that_stepped)
