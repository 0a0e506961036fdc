"""Trainings of every kind that a guard promises to leave as they would have been."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.training.guard.world import World

STEPS = 3  # the first, which makes the optimizer's state; the second; a later one


def pairs(items: int, *shape: int, outputs: int = 3, steps: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of inputs and targets."""
    return [(torch.randn(items, *shape), torch.randn(items, outputs)) for _ in range(steps)]


def squared(model: nn.Module) -> Callable[[Any], torch.Tensor]:
    """The mean squared error of a model."""
    return lambda batch: F.mse_loss(model(batch[0]), batch[1])


def mlp() -> World:
    """Dropout, and a scheduler."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return World(model=model, optimizers=[optimizer], batches=pairs(4, 5), loss_of=squared(model), scheduler=scheduler)


def transformer() -> World:
    """Attention and dropout, gradients clipped."""
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True)
    return World(
        model=model,
        optimizers=[optimizer],
        batches=pairs(2, 3, 4),
        loss_of=squared(model),
        options={"clip_grad_norm": 0.5},
    )


def convolution() -> World:
    """BatchNorm, whose statistics change in forward."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3), nn.Flatten()
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2)
    return World(model=model, optimizers=[optimizer], batches=pairs(3, 2, 5, 5), loss_of=squared(model))


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def lstm() -> World:
    """Gradients clipped by the user's own function."""
    torch.manual_seed(4)
    model = _Lstm()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2, momentum=0.5, centered=True, foreach=True)
    return World(
        model=model,
        optimizers=[optimizer],
        batches=pairs(3, 2, 4),
        loss_of=squared(model),
        options={"before_step": lambda: nn.utils.clip_grad_value_(model.parameters(), 0.02)},
    )


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(F.dropout(self.embedding(tokens), 0.2, training=self.training))


def tied() -> World:
    """One parameter that is both the first layer and the last."""
    torch.manual_seed(5)
    model = _Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = [{"x": torch.randint(7, (3, 4)), "y": torch.randint(7, (3, 4))} for _ in range(STEPS)]
    return World(
        model=model,
        optimizers=[optimizer],
        batches=batches,
        loss_of=lambda batch: F.cross_entropy(model(batch["x"]).flatten(0, 1), batch["y"].flatten()),
        options={"before_step": lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1)},
    )


def _mixed(dtype: torch.dtype, init_scale: float, foreach: bool) -> World:
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=foreach)

    def loss_of(batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", dtype=dtype):
            prediction = model(batch[0])
        return F.mse_loss(prediction.float(), batch[1])

    return World(
        model=model,
        optimizers=[optimizer],
        batches=pairs(4, 5),
        loss_of=loss_of,
        scaler=torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=2),
        options={"clip_grad_norm": 0.5},
    )


def bfloat16() -> World:
    """Mixed precision with a scaler that grows."""
    return _mixed(torch.bfloat16, 2.0**10, foreach=True)


def float16_skipped() -> World:
    """Mixed precision whose first step is infinite: it is left out and the scale halved."""
    return _mixed(torch.float16, 2.0**20, foreach=False)


def accumulation() -> World:
    """Every optimizer step follows two batches; the loss is divided by the user."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    squared_error = squared(model)
    return World(
        model=model,
        optimizers=[optimizer],
        batches=pairs(4, 5, steps=2 * STEPS),
        loss_of=lambda batch: squared_error(batch) / 2,
        updates=lambda number: number % 2 == 1,
        options={"clip_grad_norm": 0.3},
    )


def accumulation_scaled() -> World:
    """Accumulation under a scaler."""
    world = _mixed(torch.bfloat16, 2.0**8, foreach=True)
    world.batches = [*world.batches, *pairs(4, 5, steps=1)]
    world.updates = lambda number: number % 2 == 1
    return world


def two_optimizers() -> World:
    """Groups with options of their own, a frozen half, a parameter that gets no gradient, and two optimizers."""
    torch.manual_seed(8)
    model = nn.ModuleDict(
        {"frozen": nn.Linear(5, 6), "body": nn.Linear(6, 6), "head": nn.Linear(6, 3), "unused": nn.Linear(2, 2)}
    )
    model["frozen"].requires_grad_(requires_grad=False)
    groups = [
        {"params": [model["body"].weight], "weight_decay": 0.1, "lr": 0.02},
        {"params": [model["body"].bias, *model["unused"].parameters()]},
    ]
    first = torch.optim.AdamW(groups, lr=1e-2, amsgrad=True, foreach=True)
    second = torch.optim.SGD(model["head"].parameters(), lr=0.1, momentum=0.9)
    hidden = lambda x: F.dropout(torch.relu(model["body"](model["frozen"](x))), 0.2)  # noqa: E731
    return World(
        model=model,
        optimizers=[first, second],
        batches=pairs(4, 5),
        loss_of=lambda batch: F.mse_loss(model["head"](hidden(batch[0])), batch[1]),
        scheduler=torch.optim.lr_scheduler.StepLR(first, 1, 0.5),
        options={"clip_grad_norm": 0.2},
    )


def toggled() -> World:
    """A layer that is frozen in the second step, and has state to be made in the last."""
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.2), nn.ReLU(), nn.Linear(6, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True)

    def begin(number: int) -> None:
        model[0].requires_grad_(number != 1)
        model[3].requires_grad_(number != 0)

    return World(model=model, optimizers=[optimizer], batches=pairs(4, 5), loss_of=squared(model), begin=begin)


class _Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4, sparse=True)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(F.dropout(self.embedding(tokens).mean(1), 0.2, training=self.training))


def _sparse(make: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]) -> World:
    torch.manual_seed(10)
    model = _Sparse()
    batches = [(torch.randint(9, (4, 3)), torch.randn(4, 3)) for _ in range(STEPS)]
    return World(
        model=model,
        optimizers=[make(model.embedding.parameters()), torch.optim.SGD(model.head.parameters(), lr=0.1)],
        batches=batches,
        loss_of=squared(model),
    )


def sparse_sgd() -> World:
    """Sparse gradients, as they are."""
    return _sparse(lambda parameters: torch.optim.SGD(parameters, lr=0.1))


def sparse_adam() -> World:
    """Sparse gradients in the optimizer that is made for them."""
    return _sparse(lambda parameters: torch.optim.SparseAdam(parameters, lr=0.01))


WORLDS: tuple[Callable[[], World], ...] = (
    mlp,
    transformer,
    convolution,
    lstm,
    tied,
    bfloat16,
    float16_skipped,
    accumulation,
    accumulation_scaled,
    two_optimizers,
    toggled,
    sparse_sgd,
    sparse_adam,
)
