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
        self._is_over = False

    def install(self) -> None:
        """Begin."""
        optimizers.register_optimizer_step_post_hook(self._after)

    def end(self) -> None:
        """Call back no more. The hook stays: PyTorch may be going through its hooks at this moment."""
        self._is_over = True

    @torch._disable_dynamo  # type: ignore[untyped-decorator]  # a compiled step has nothing of ours in it
    def _after(self, optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> None:
        if self._is_over:
            return
        first = self._first() if self._first is not None else None
        if first is None:
            self._first = weakref.ref(optimizer)
        elif first is not optimizer:
            return
        self._on_step(optimizer)
