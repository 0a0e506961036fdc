"""Errors at chosen operations, and weak references to the memory of every tensor that the attempts before them made."""

from collections.abc import Iterator
from typing import Any

import torch

from tests.training.guard.faults import Faults


class Made(Faults):
    """Notes the storage of every tensor that an operation makes between `begin()` and the next one of it.

    A storage is what holds memory: that of an output, of what autograd saves, of a gradient. Those that operations are
    given, such as parameters, are not made here.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.left: list[str] = []
        self.checked = 0
        self._made: list[tuple[str, Any]] | None = None
        self._raised = 0

    def begin(self) -> bool:
        """An attempt begins: where the one before it has failed, which is told, nothing that it made is alive."""
        is_again = self._made is not None and self.raised > self._raised
        if self._made is not None and is_again:
            self.checked += len(self._made)
            self.left += [name for name, weak in self._made if not torch.UntypedStorage._expired(weak)]
        self._release()
        self._made, self._raised = [], self.raised
        return is_again

    def end(self) -> None:
        """What is made from here on may stay."""
        self._release()
        self._made = None

    def _release(self) -> None:
        for _, weak in self._made or ():
            torch.UntypedStorage._free_weak_ref(weak)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self._made is not None:
            given = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs or {}))}
            for tensor in _tensors(result):
                storage = tensor.untyped_storage()
                if storage._cdata not in given:
                    self._made.append((f"{len(self._made)} {func}", storage._weak_ref()))
        return result


class Squeezed(Made):
    """Fills the card before each chosen operation: PyTorch's own allocator runs out there, if anything is allocated."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.count not in self.at:
            return super().__torch_dispatch__(func, types, args, kwargs)
        self.at.discard(self.count)
        ballast, size = [], 1 << 34
        while size >= 512:
            try:
                ballast.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                size //= 2
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except torch.OutOfMemoryError:
            self.raised += 1
            raise
        finally:
            ballast.clear()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            yield value
        elif value.layout is torch.sparse_coo:
            yield from (value._indices(), value._values())
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _tensors(element)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
