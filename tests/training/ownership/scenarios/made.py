"""What the scenarios are made of: all sizes are whole MiB, so that a sum is told at a glance."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn


def tensor(mib: int = 2) -> Tensor:
    """Make a tensor of so many MiB."""
    return torch.empty(mib << 18, device="cuda")


def tensors(count: int) -> Iterator[Tensor]:
    """Make one tensor of 2 MiB after the other."""
    for _ in range(count):
        yield tensor()


def net() -> nn.Sequential:
    """Make a model of two layers of 4 MiB."""
    return nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.GELU(), nn.Linear(1024, 1024, bias=False)).cuda()


def inputs() -> Tensor:
    """Make a batch of 2 MiB for the model."""
    return torch.randn(512, 1024, device="cuda")


def loss_of(model: nn.Module) -> Tensor:
    """Run a batch through a model; the graph holds what backward needs."""
    loss: Tensor = model(inputs()).square().mean()
    return loss
