"""What the loops of the corpus have in common: a small model, and its training."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

KEPT_FLOATS = 16384
"""64 KiB, which a planted leak keeps a step."""


def model_of(width: int = 64, depth: int = 2) -> nn.Sequential:
    """A small model on the card."""
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 16)).cuda()


class Training:
    """A model and the step that trains it."""

    def __init__(self, width: int = 64, make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW) -> None:
        self.width = width
        self.model = model_of(width)
        self.optimizer = make(self.model.parameters(), lr=1e-3)

    def batch(self, items: int = 32) -> Any:
        """Items to train on."""
        return torch.randn(items, self.width, device="cuda")

    def step(self, items: int = 32) -> None:
        """Train on a batch."""
        self.optimizer.zero_grad()
        self.model(self.batch(items)).square().mean().backward()
        self.optimizer.step()
