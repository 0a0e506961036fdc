"""Split each batch of a `DataLoader` into parts for gradient accumulation, one part per loop iteration."""

# The loop zeroes gradients, clips, steps and schedules in every iteration. Until the last part, these calls are
# skipped. The loss is multiplied by the part's share of the batch when the script calls backward. Code written by hand
# does the same: `(loss * share).backward()`, and `if it is the last part:` before the other calls. If the loop belongs
# to a library, the library gets arguments instead: smaller batches, and more batches per step.

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import torch
from torch.utils.data import DataLoader

from ullage.predicting.changes.accumulation.library_recipe import accumulates
from ullage.predicting.changes.change import AppliedChange
from ullage.predicting.changes.training.facts import LossForm
from ullage.predicting.changes.training.known_names import users_frame
from ullage.predicting.changes.training.loss_form import form_of_loss
from ullage.predicting.changes.training.wrapping import TRAINERS, watch_calls, when_imported, wrap
from ullage.training.guard.splitting.batch import all_of, form_of, narrow, why_whole

_LEFT_OUT: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("torch.amp.grad_scaler", "GradScaler", ("step", "update", "unscale_")),
    ("torch.optim.lr_scheduler", "LRScheduler", ("step",)),
    ("torch.optim.lr_scheduler", "ReduceLROnPlateau", ("step",)),
)
_CLIPPING: Final = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")
_MARK: Final = "_ullage_takes_parts"


@dataclass(slots=True)
class _Turn:
    index: int = 0
    count: int = 1
    share: float = 1.0
    has_passed_back: bool = False

    @property
    def is_last(self) -> bool:
        return self.index == self.count - 1


class PartsOfLoader:
    """Splits each batch of the data loaders into parts. The optimizer steps only after the last part."""

    def __init__(self, applied: AppliedChange) -> None:
        self._applied = applied
        self._parts = int(applied.setting)
        self._turn = _Turn()
        self._stepping: set[type] = set()
        self._library = _LibraryArguments(applied)
        # Data loaders can be nested. Only the outermost of those that are returning a batch splits it.
        self._depth = 0
        wrap(DataLoader, "__iter__", self._iterated)
        when_imported("accelerate.data_loader", self._watch_accelerate)
        wrap(torch.Tensor, "backward", self._backward)
        applied.loop.optimizer_made.append(self._wrap_step)
        for owner in (torch.optim.Optimizer, torch.nn.Module):
            self._wrap(owner, "zero_grad", self._may_zero, None)
        for module, kind, names in _LEFT_OUT:
            for name in names:
                self._wrap(getattr(import_module(module), kind), name, self._may_step, None)
        for name in _CLIPPING:
            if hasattr(torch.nn.utils, name):
                self._wrap(torch.nn.utils, name, self._may_step, torch.zeros(()))

    def _watch_accelerate(self, module: Any) -> None:
        for name in ("DataLoaderShard", "DataLoaderDispatcher"):
            wrap(getattr(module, name), "__iter__", self._iterated)

    def _wrap(self, owner: Any, name: str, may: Callable[[], bool], otherwise: Any) -> None:
        def around(original: Any, *arguments: Any, **keywords: Any) -> Any:
            return original(*arguments, **keywords) if may() else otherwise

        wrap(owner, name, around)

    def _wrap_step(self, optimizer: torch.optim.Optimizer) -> None:
        kind = type(optimizer)
        if kind not in self._stepping:
            self._stepping.add(kind)
            self._wrap(kind, "step", self._may_step, None)

    def _backward(self, original: Any, loss: torch.Tensor, *arguments: Any, **keywords: Any) -> None:
        turn = self._turn
        if turn.count == 1:
            original(loss, *arguments, **keywords)
            return
        if turn.has_passed_back:
            self._applied.fail("the loop calls backward several times for one batch")
        is_sum = form_of_loss(loss, reads_saved=False) is LossForm.SUM
        original(loss if is_sum else loss * turn.share, *arguments, **keywords)
        turn.has_passed_back = True

    def _may_step(self) -> bool:
        return self._turn.is_last

    # Gradients may be set to zero before the first part of a batch, or after its last part.
    def _may_zero(self) -> bool:
        return self._turn.is_last if self._turn.has_passed_back else self._turn.index == 0

    def _iterated(self, original: Any, loader: Any) -> Iterator[Any]:
        return self._parts_of(iter(original(loader)))

    def _parts_of(self, batches: Iterator[Any]) -> Iterator[Any]:
        try:
            while True:
                self._depth += 1
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                finally:
                    self._depth -= 1
                if self._depth or self._library.has_taken_over:
                    yield batch
                else:
                    yield from self._cut(batch)
        finally:
            self._turn = _Turn()

    def _cut(self, batch: Any) -> Iterator[Any]:
        form = form_of(all_of(batch), 0)
        why = why_whole(batch, is_vouched=True)
        items = form.items
        if why is not None or items is None or form.uneven is not None or items < self._parts:
            if items is None or items >= self._parts:  # the last batch of an epoch may be smaller
                self._applied.fail(f"a batch of the loader contains {why or 'rows that do not belong to its items'}")
            self._turn = _Turn()
            yield batch
            return
        length = -(-items // self._parts)
        starts = range(0, items, length)
        self._applied.took_effect()
        for index, start in enumerate(starts):
            rows = min(length, items - start)
            self._turn = _Turn(index=index, count=len(starts), share=rows / items)
            yield narrow(batch, 0, start, rows)


class _LibraryArguments:
    def __init__(self, applied: AppliedChange) -> None:
        self._applied = applied
        self._parts = int(applied.setting)
        # If a library accumulates the gradients, ullage's hooks do not accumulate them.
        self.has_taken_over = False
        watch_calls("transformers", self._arguments_made, only_users=False)
        watch_calls("lightning", self._trainer_made, only_users=False)
        for module in TRAINERS:
            when_imported(module, lambda trainer: self._wrap_loaders())
        watch_calls("accelerate", self._accelerator_made)

    def _arguments_made(self, arguments: Any, keywords: object) -> None:
        batch = arguments.per_device_train_batch_size
        if not hasattr(arguments, _MARK) and self._divides(batch):
            setattr(arguments, _MARK, True)
            arguments.per_device_train_batch_size = batch // self._parts
            arguments.gradient_accumulation_steps *= self._parts

    def _trainer_made(self, trainer: object, keywords: dict[str, Any]) -> None:
        self.has_taken_over = True
        keywords["accumulate_grad_batches"] = (keywords.get("accumulate_grad_batches") or 1) * self._parts

    def _accelerator_made(self, accelerator: object, keywords: dict[str, Any]) -> None:
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
            self._applied.fail(f"a batch of {batch} cannot be divided into {self._parts} equal parts")
            return False
        self.has_taken_over = True
        self._applied.took_effect()
        return True
