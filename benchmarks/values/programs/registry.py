"""What the programs have in common: their table, what they note sizes with, and parts of models."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

Note = Callable[[str, Any], None]
Program = Callable[[str, Note], None]
PROGRAMS: Final[dict[str, Program]] = {}
STEPS: Final = 3


def program(function: Program) -> Program:
    """Register a program by its name."""
    PROGRAMS[function.__name__] = function
    return function


def trained(module: nn.Module, *, rate: float = 1e-3) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a module with an optimizer for it."""
    return module, torch.optim.AdamW(module.parameters(), rate)


def experts(width: int, count: int) -> nn.ModuleList:
    """Return feed-forward networks."""
    return nn.ModuleList(
        nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(count)
    )
