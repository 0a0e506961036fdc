"""Errors of memory raised at chosen operations, as PyTorch's allocator raises them: before the operation has run."""

from collections.abc import Collection
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

TEXT = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 14.56 GiB of which 3.25 MiB is "
    "free. Including non-PyTorch memory, this process has 14.55 GiB memory in use. Of the allocated memory 14.40 GiB "
    "is allocated by PyTorch, and 20.11 MiB is reserved by PyTorch but unallocated."
)


class Faults(TorchDispatchMode):
    """Counts the operations run inside, and raises at those whose numbers (from 0 on) are in `at`."""

    def __init__(self, at: Collection[int] = (), *, always: bool = False, text: str = TEXT) -> None:
        super().__init__()
        self.at = set(at)
        self.count = 0
        self.raised = 0
        self.operations: list[Any] = []
        self._text = text

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to say so at every call takes more time than the call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        number = self.count
        self.count += 1
        self.operations.append(func)
        if number in self.at:
            self.raised += 1
            raise torch.OutOfMemoryError(self._text)
        return func(*args, **(kwargs or {}))
