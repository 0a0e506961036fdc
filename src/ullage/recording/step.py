"""When a step of the script ends: where its first optimizer steps, whatever calls it."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as optimizers


class StepWatch:
    """Calls back at the end of every step, from PyTorch's global hook of optimizers.

    Where several optimizers take turns, as in a GAN, a step ends with the first of them; if that one is gone, with the
    next one that steps.
    """

    def __init__(self, on_step: Callable[[torch.optim.Optimizer], None]) -> None:
        self._on_step = on_step
        self._first: weakref.ref[Any] | None = None
        self._handle: Any = None

    def install(self) -> None:
        """Begin."""
        self._handle = optimizers.register_optimizer_step_post_hook(self._after)

    def remove(self) -> None:
        """End."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _after(self, optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> None:
        first = self._first() if self._first is not None else None
        if first is None:
            self._first = weakref.ref(optimizer)
        elif first is not optimizer:
            return
        self._on_step(optimizer)
