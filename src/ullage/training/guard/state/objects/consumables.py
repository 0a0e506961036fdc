"""Refuses batches with objects that can be read only once: a step with such a batch could not be repeated."""

import io
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any, Final

from torch.utils.data import DataLoader, IterableDataset

from ullage.base.errors import UsageError
from ullage.training.guard.state.objects.graph import FoundIn, Graph

_STREAMS: Final = (Iterator, AsyncIterator, Awaitable, io.IOBase, DataLoader, IterableDataset)
_QUEUE: Final = ("get", "put", "empty")
_FILE: Final = ("read", "close")
_CONNECTION: Final = ("recv", "send")


def refuse_consumables(batch: Any) -> None:
    """Raise an error if a batch contains an object that can be read only once.

    Raises:
        UsageError: the batch has an iterator, a generator, a file, a queue, a data loader or a stream.
    """
    for path, value in Graph().entered("batch", batch, FoundIn.BATCH):
        if _is_consumable(value):
            raise UsageError(
                f"{path} is of type {type(value).__qualname__}, which can be read only once, so a step that runs out "
                "of memory could not be retried; expected tensors, and containers that can be read twice: convert it "
                "to a list first"
            )


def _is_consumable(value: Any) -> bool:
    if isinstance(value, _STREAMS):
        return True
    kind = type(value)
    if kind.__module__ == "builtins":
        return False
    return any(all(callable(getattr(kind, name, None)) for name in names) for names in (_QUEUE, _FILE, _CONNECTION))
