"""One run of a construct: on the host, on the card with its values, or on the card with its sizes written down."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

Construct = Callable[["Run"], Any]
CONSTRUCTS: dict[str, Construct] = {}


def construct(function: Construct) -> Construct:
    """Register a construct by its name."""
    CONSTRUCTS[function.__name__] = function
    return function


class Run:
    """What a construct is given: its device, and two ways to say which size it reads back.

    `is_constant`: the sizes that the construct names are used in place of what is read, which nobody knows then.
    """

    def __init__(self, device: str, answer: Callable[[int | None], None], *, is_constant: bool = False) -> None:
        self.device = device
        self.is_constant = is_constant
        self._answer = answer

    def number(self, expected: Any, read: Callable[[], Any]) -> Any:
        """Read a value back; `expected` in its place where sizes are constants."""
        found = read()
        return expected if self.is_constant else found

    def counted(self, count: int, operate: Callable[[], Any]) -> Any:
        """Run an operator that reads a count within itself; `count` where sizes are constants."""
        if not self.is_constant:
            return operate()
        self._answer(count)
        try:
            return operate()
        finally:
            self._answer(None)

    def to(self, *tensors: torch.Tensor) -> Any:
        """Send tensors to the device."""
        moved = tuple(tensor.to(self.device) for tensor in tensors)
        return moved[0] if len(moved) == 1 else moved

    def ints(self, *numbers: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Return numbers on the device."""
        return torch.tensor(numbers, dtype=dtype, device=self.device)

    def floats(self, *size: int) -> torch.Tensor:
        """Return numbers on the device that the host has drawn, the same in each run."""
        return torch.randn(size, generator=torch.Generator().manual_seed(3)).to(self.device)

    def whole(self, high: int, *size: int) -> torch.Tensor:
        """Return whole numbers below `high` on the device that the host has drawn, the same in each run."""
        return torch.randint(high, size, generator=torch.Generator().manual_seed(5)).to(self.device)

    def guard(self) -> AbstractContextManager[Any]:
        """Return a context that does nothing."""
        return nullcontext()


def plain(result: Any) -> Any:
    """Return a result as JSON can hold it: of a tensor its type, size and numbers."""
    if isinstance(result, torch.Tensor):
        if result.layout != torch.strided:
            return [str(result.layout), str(result.dtype), str(result.size())]
        return [str(result.dtype), list(result.size()), result.detach().cpu().double().tolist()]
    if isinstance(result, torch.nn.utils.rnn.PackedSequence):
        return [plain(result.data), plain(result.batch_sizes)]
    if isinstance(result, dict):
        return {name: plain(each) for name, each in result.items()}
    if isinstance(result, list | tuple):
        return [plain(each) for each in result]
    return result
