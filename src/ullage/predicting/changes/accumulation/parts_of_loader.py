"""Parts of the batches of a `DataLoader`, each a turn of the script's loop; the step is taken behind the last of them.

The loop zeroes gradients, clips, steps and schedules in every turn. What it asks for in the turns in between is left
out; the loss is multiplied by the part's share where its backward pass is asked for. So do the lines of a person:
`(loss * share).backward()`, and `if it is the last part:` before the rest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import torch
from torch.utils.data import DataLoader

from ullage.predicting.changes.accumulation.library_arguments import LibraryArguments
from ullage.predicting.changes.change import AppliedChange
from ullage.predicting.changes.training.facts import LossForm
from ullage.predicting.changes.training.loss_form import LossReader
from ullage.predicting.changes.training.wrapping import when_imported, wrap
from ullage.training.guard.splitting.batch import all_of, form_of, narrow, why_whole

_LEFT_OUT: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("torch.amp.grad_scaler", "GradScaler", ("step", "update", "unscale_")),
    ("torch.optim.lr_scheduler", "LRScheduler", ("step",)),
    ("torch.optim.lr_scheduler", "ReduceLROnPlateau", ("step",)),
)
_CLIPPING: Final = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")


@dataclass(slots=True)
class _Turn:
    """The part that the loop has in hand."""

    index: int = 0
    count: int = 1
    share: float = 1.0
    has_passed_back: bool = False

    @property
    def is_last(self) -> bool:
        """Whether the step may be taken behind this part."""
        return self.index == self.count - 1


class PartsOfLoader:
    """Cuts what loaders give, and leaves out what only the last part's turn may do."""

    def __init__(self, applied: AppliedChange) -> None:
        """Wrap the loaders, and what a loop does in every turn."""
        self._applied = applied
        self._parts = int(applied.setting)
        self._turn = _Turn()
        self._stepping: set[type] = set()
        self._library = LibraryArguments(applied)
        self._depth = 0
        """The number of loaders that are giving a batch: a loader that hands on what another gives is cut alone."""
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
        """Wrap the step of an optimizer's class, around the hooks that PyTorch has put into it."""
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
            self._applied.fail("the loop asks for several backward passes a batch")
        is_sum = LossReader(None).form(loss, reads_saved=False) is LossForm.SUM
        original(loss if is_sum else loss * turn.share, *arguments, **keywords)
        turn.has_passed_back = True

    def _may_step(self) -> bool:
        return self._turn.is_last

    def _may_zero(self) -> bool:
        """Tell whether gradients may be zeroed: before the first part's backward pass, or behind the last one's."""
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
            if items is None or items >= self._parts:  # the last batch of an epoch may be a small one
                self._applied.fail(f"a batch of the loader holds {why or 'rows that are not its items'}")
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
