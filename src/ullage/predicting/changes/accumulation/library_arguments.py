"""Accumulation by the arguments of the library whose loop it is: smaller batches, and more of them to a step."""

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ullage.gpu.tracing.source import is_users
from ullage.gpu.tracing.torch_import import ImportWatch
from ullage.predicting.changes.accumulation.library_recipe import accumulates
from ullage.predicting.changes.source.user_source import source_of
from ullage.predicting.editing.edit import NotCertain

if TYPE_CHECKING:
    from ullage.predicting.changes.training.training_loop import TrainingLoop

_TRAINERS: Final = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
_MARK: Final = "_ullage_takes_parts"


class LibraryArguments:
    """Changes what a script asks a library for, at the moment at which it asks."""

    def __init__(self, loop: "TrainingLoop", text: str, parts: int) -> None:
        self._loop = loop
        self._text = text
        self._parts = parts
        self.has_taken_over = False
        """Whether a library accumulates, so that nobody else may."""

    def install(self) -> None:
        """Wait for the libraries."""
        self.when_imported("transformers.training_args", "TrainingArguments", self._wrap_arguments)
        for module in _TRAINERS:
            self.when_imported(module, "Trainer", self._wrap_trainer)
        self.when_imported("accelerate.accelerator", "Accelerator", self._wrap_accelerator)

    def when_imported(self, module: str, name: str, act: Callable[[Any], None]) -> None:
        """Act on a class of a module, now or as soon as it is imported."""
        if module in sys.modules:
            act(getattr(sys.modules[module], name))
        else:
            ImportWatch(module, before=lambda: None, after=lambda made: act(getattr(made, name))).install()

    def _wrap_arguments(self, kind: Any) -> None:
        """Have transformers' arguments ask for a part of the batch, and for as many parts as make it whole."""
        original = kind.__post_init__

        @functools.wraps(original)
        def post_init(arguments: Any) -> None:
            batch = arguments.per_device_train_batch_size
            if not hasattr(arguments, _MARK) and self._divides(batch):
                setattr(arguments, _MARK, True)
                arguments.per_device_train_batch_size = batch // self._parts
                arguments.gradient_accumulation_steps *= self._parts
            original(arguments)

        kind.__post_init__ = post_init

    def _wrap_trainer(self, kind: Any) -> None:
        """Have Lightning's trainer step after several batches, and the loaders give smaller ones."""
        original = kind.__init__

        @functools.wraps(original)
        def init(trainer: Any, *arguments: Any, **keywords: Any) -> None:
            self.has_taken_over = True
            keywords["accumulate_grad_batches"] = (keywords.get("accumulate_grad_batches") or 1) * self._parts
            original(trainer, *arguments, **keywords)

        kind.__init__ = init
        self._wrap_loaders()

    def _wrap_accelerator(self, kind: Any) -> None:
        """Have Accelerate step after several batches, where the script's loop stands in its `accumulate`."""
        original = kind.__init__

        @functools.wraps(original)
        def init(accelerator: Any, *arguments: Any, **keywords: Any) -> None:
            caller = sys._getframe(1).f_code.co_filename
            if is_users(caller) and _accumulates(caller):
                if keywords.get("gradient_accumulation_plugin") is not None:
                    self._loop.refuse(self._text, "the script gives Accelerator a gradient_accumulation_plugin")
                else:
                    self.has_taken_over = True
                    steps = keywords.get("gradient_accumulation_steps") or 1
                    keywords["gradient_accumulation_steps"] = steps * self._parts
                    self._wrap_loaders()
            original(accelerator, *arguments, **keywords)

        kind.__init__ = init

    def _wrap_loaders(self) -> None:
        from torch.utils.data import DataLoader

        kind: Any = DataLoader
        original = kind.__init__

        @functools.wraps(original)
        def init(loader: Any, dataset: Any, batch_size: Any = 1, *arguments: Any, **keywords: Any) -> None:
            if isinstance(batch_size, int) and batch_size > 1 and self._divides(batch_size):
                batch_size //= self._parts
            original(loader, dataset, batch_size, *arguments, **keywords)

        kind.__init__ = init

    def _divides(self, batch: int) -> bool:
        if batch % self._parts:
            self._loop.refusals[self._text] = f"a batch of {batch} does not divide into {self._parts} equal parts"
            return False
        self.has_taken_over = True
        self._loop.effects[self._text] += 1
        return True


def _accumulates(file: str) -> bool:
    try:
        return accumulates(source_of(file))
    except NotCertain:
        return False
