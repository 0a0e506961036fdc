"""What a batch must not hold, because a loss function uses it up: it would find less the second time."""

import io
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any, Final

from torch.utils.data import DataLoader, IterableDataset

from ullage.base.errors import UsageError
from ullage.training.guard.state.objects.contents import Contents

_STREAMS: Final = (Iterator, AsyncIterator, Awaitable, io.IOBase, DataLoader, IterableDataset)
_QUEUE: Final = ("get", "put", "empty")
_FILE: Final = ("read", "close")
_CONNECTION: Final = ("recv", "send")


def refuse_consumables(batch: Any) -> None:
    """Raise an error if anything in a batch can be consumed.

    Raises:
        UsageError: there is an iterator, a generator, a file, a queue, a loader or a stream.
    """
    for path, value in Contents.reachable("batch", batch):
        if is_consumable(value):
            raise UsageError(
                f"{path} is of type {type(value).__qualname__}, which the loss function uses up, so that a step that "
                "runs out of memory could not be taken again; expected tensors, and containers that can be read "
                "twice: make a list of it first"
            )


def is_consumable(value: Any) -> bool:
    """Tell whether a value gives each of its elements once."""
    if isinstance(value, _STREAMS):
        return True
    kind = type(value)
    if kind.__module__ == "builtins":
        return False
    return any(all(callable(getattr(kind, name, None)) for name in names) for names in (_QUEUE, _FILE, _CONNECTION))
