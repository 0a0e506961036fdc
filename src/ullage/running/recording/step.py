"""Detects the end of a training step, which is a call of `step` on the script's first optimizer."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._compile import _disable_dynamo
from torch.optim import optimizer as optimizers


class StepWatch:
    """Calls a function at the end of each training step, with PyTorch's global optimizer hook.

    If there are several optimizers, as in a GAN, a step ends with the `step` call of the first optimizer.
    """

    def __init__(self, on_step: Callable[[torch.optim.Optimizer], None]) -> None:
        self._on_step = on_step
        self._first: weakref.ref[Any] | None = None
        self._is_over = False

    def install(self) -> None:
        """Install PyTorch's global optimizer hook."""
        optimizers.register_optimizer_step_post_hook(self._after)

    def stop(self) -> None:
        """Stop reporting optimizer steps. PyTorch's optimizer hook stays installed, but does nothing."""
        self._is_over = True

    @_disable_dynamo  # so that torch.compile does not compile this hook into the step
    def _after(self, optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> None:
        if self._is_over:
            return
        first = self._first() if self._first is not None else None
        if first is None:
            self._first = weakref.ref(optimizer)
        elif first is not optimizer:
            return
        self._on_step(optimizer)
