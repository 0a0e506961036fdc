"""What an idiom is made of: a training of three steps in float64, and all that it leaves beside its parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from tests.training.guard.world import World

ITEMS, WIDTH, STEPS = 8, 6, 3


def net(*, out: int = 4, middle: Sequence[nn.Module] = ()) -> nn.Sequential:
    """A net of two layers."""
    return nn.Sequential(nn.Linear(WIDTH, 5), *middle, nn.Tanh(), nn.Linear(5, out))


def inputs(*sizes: int) -> list[torch.Tensor]:
    """A tensor for each step."""
    return [torch.randn(*(sizes or (ITEMS, WIDTH))) for _ in range(STEPS)]


def world(
    model: nn.Module,
    batches: Sequence[Any],
    loss_of: Callable[[Any], Any],
    *,
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
    **options: Any,
) -> World:
    """A training with SGD with momentum, of all parameters that require a gradient."""
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = make(trained) if make is not None else torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    return World(model=model, optimizers=[optimizer], batches=batches, loss_of=loss_of, options=options)


def frozen(module: nn.Module) -> nn.Module:
    """The module, with nothing of it trained."""
    return module.requires_grad_(requires_grad=False)
