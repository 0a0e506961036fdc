"""Accumulation by the arguments of the library whose loop it is: smaller batches, and more of them to a step."""

from typing import Any, Final

from torch.utils.data import DataLoader

from ullage.predicting.changes.accumulation.library_recipe import accumulates
from ullage.predicting.changes.change import AppliedChange
from ullage.predicting.changes.training.library_calls import TRAINERS, watch_calls
from ullage.predicting.changes.training.training_loop import users_frame
from ullage.predicting.changes.training.wrapping import when_imported, wrap

_MARK: Final = "_ullage_takes_parts"


class LibraryArguments:
    """Changes what a script asks a library for, at the moment at which it asks."""

    def __init__(self, applied: AppliedChange) -> None:
        """Wait for the libraries."""
        self._applied = applied
        self._parts = int(applied.setting)
        self.has_taken_over = False
        """Whether a library accumulates, so that nobody else may."""
        watch_calls("transformers", self._arguments_made, only_users=False)
        watch_calls("lightning", self._trainer_made, only_users=False)
        for module in TRAINERS:
            when_imported(module, lambda trainer: self._wrap_loaders())
        watch_calls("accelerate", self._accelerator_made)

    def _arguments_made(self, arguments: Any, keywords: object) -> None:
        """Have transformers' arguments ask for a part of the batch, and for as many parts as make it whole."""
        batch = arguments.per_device_train_batch_size
        if not hasattr(arguments, _MARK) and self._divides(batch):
            setattr(arguments, _MARK, True)
            arguments.per_device_train_batch_size = batch // self._parts
            arguments.gradient_accumulation_steps *= self._parts

    def _trainer_made(self, trainer: object, keywords: dict[str, Any]) -> None:
        """Have Lightning's trainer step after several batches; the loaders give smaller ones."""
        self.has_taken_over = True
        keywords["accumulate_grad_batches"] = (keywords.get("accumulate_grad_batches") or 1) * self._parts

    def _accelerator_made(self, accelerator: object, keywords: dict[str, Any]) -> None:
        """Have Accelerate step after several batches, where the script's loop stands in its `accumulate`."""
        frame = users_frame()
        if frame is None or not accumulates(frame.f_code.co_filename):
            return
        if keywords.get("gradient_accumulation_plugin") is not None:
            self._applied.refuse("the script gives Accelerator a gradient_accumulation_plugin")
            return
        self.has_taken_over = True
        steps = keywords.get("gradient_accumulation_steps") or 1
        keywords["gradient_accumulation_steps"] = steps * self._parts
        self._wrap_loaders()

    def _wrap_loaders(self) -> None:
        wrap(DataLoader, "__init__", self._loader_made)

    def _loader_made(
        self, original: Any, loader: Any, dataset: Any, batch_size: Any = 1, *arguments: Any, **keywords: Any
    ) -> None:
        if isinstance(batch_size, int) and batch_size > 1 and self._divides(batch_size):
            batch_size //= self._parts
        original(loader, dataset, batch_size, *arguments, **keywords)

    def _divides(self, batch: int) -> bool:
        if batch % self._parts:
            self._applied.fail(f"a batch of {batch} does not divide into {self._parts} equal parts")
            return False
        self.has_taken_over = True
        self._applied.took_effect()
        return True
