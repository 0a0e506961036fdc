"""Loops of every make: optimizers, accumulation, mixed precision, checkpoints, compiled and parallel models."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.training.guard.idioms.idiom import ITEMS, WIDTH, inputs, net, world
from tests.training.guard.world import World


def _of(model: nn.Module, **options: Any) -> World:
    return world(model, inputs(), lambda x: model(x).pow(2).mean(), **options)


def dropout() -> World:
    return _of(net(middle=[nn.Dropout(0.3)]))


def functional_dropout() -> World:
    model = net()
    return world(model, inputs(), lambda x: F.dropout(model(x), 0.3).pow(2).mean())


def batchnorm() -> World:
    return _of(net(middle=[nn.BatchNorm1d(5)]))


def batchnorm_frozen() -> World:
    return _of(net(middle=[nn.BatchNorm1d(5)]), batchnorm="freeze")


def layernorm() -> World:
    return _of(net(middle=[nn.LayerNorm(5)]))


def tied_weights() -> World:
    model = nn.ModuleDict({"inner": nn.Linear(WIDTH, 5), "outer": nn.Linear(5, WIDTH)})
    table = nn.Embedding(7, WIDTH)
    model["table"], head = table, nn.Linear(WIDTH, 7)
    head.weight = table.weight
    model["head"] = head
    batches = [torch.randint(7, (ITEMS, 4)) for _ in range(3)]

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        out = model["head"](torch.tanh(model["outer"](torch.tanh(model["inner"](model["table"](x))))))
        return F.cross_entropy(out.flatten(0, 1), x.flatten())

    return world(model, batches, loss_of)


def two_optimizers() -> World:
    model = net()
    found = _of(model)
    found.optimizers = [
        torch.optim.Adam(model[0].parameters(), lr=0.01),
        torch.optim.SGD(model[-1].parameters(), lr=0.1),
    ]
    return found


class Pair(nn.Module):
    """A generator and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.judge = net(out=WIDTH), net(out=1)


def gan_generator() -> World:
    """The generator's step: the discriminator is frozen meanwhile, and thawed at the end."""
    model = Pair()
    noise = inputs()

    def loss_of(z: torch.Tensor) -> torch.Tensor:
        model.judge.requires_grad_(requires_grad=False)
        loss = F.softplus(-model.judge(model.generator(z))).mean()
        model.judge.requires_grad_(requires_grad=True)
        return loss

    return world(model, noise, loss_of)


def gan_that_steps_inside() -> World:
    """The discriminator's optimizer steps inside of the loss function."""
    model = Pair()
    inner = torch.optim.SGD(model.judge.parameters(), lr=0.1)

    def loss_of(z: torch.Tensor) -> torch.Tensor:
        made = model.generator(z)
        inner.zero_grad()
        F.softplus(model.judge(made.detach())).mean().backward()
        inner.step()
        for parameter in model.judge.parameters():
            parameter.grad = None
        return F.softplus(-model.judge(made)).mean()

    found = world(model, inputs(), loss_of)
    found.optimizers = [torch.optim.SGD(model.generator.parameters(), lr=0.1)]
    return found


def accumulation() -> World:
    found = _of(net())
    found.updates = lambda number: number == 2
    return found


def accumulation_that_counts() -> World:
    """Gradients of earlier batches are there when what forward counts in is copied."""
    model = net()
    model.total = torch.zeros(())

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        model.total += 1
        return model(x).pow(2).mean() * model.total.clone()

    found = world(model, inputs(), loss_of)
    found.updates = lambda number: number == 2
    return found


def scheduler() -> World:
    found = _of(net())
    found.scheduler = torch.optim.lr_scheduler.StepLR(found.optimizers[0], 1, 0.5)
    return found


def grad_scaler() -> World:
    found = _of(net())
    found.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)
    return found


def clipped() -> World:
    return _of(net(), clip_grad_norm=0.1)


def autocast() -> World:
    model = net().float()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        return out.float().pow(2).mean()

    return world(model, [x.float() for x in inputs()], loss_of)


def lbfgs() -> World:
    return _of(net(), make=torch.optim.LBFGS)


def checkpointed() -> World:
    model = net(middle=[nn.Dropout(0.3)])
    return world(model, inputs(), lambda x: checkpoint(model, x, use_reentrant=False).pow(2).mean())


def checkpointed_reentrant() -> World:
    model = net()
    return world(
        model, inputs(), lambda x: checkpoint(model, x.detach().requires_grad_(), use_reentrant=True).pow(2).mean()
    )


def compiled() -> World:
    model = net()
    run = torch.compile(model, backend="eager")
    return world(model, inputs(), lambda x: run(x).pow(2).mean())


def data_parallel() -> World:
    model = nn.DataParallel(net())
    return world(model, inputs(), lambda x: model(x).pow(2).mean())


def lstm() -> World:
    model = nn.LSTM(WIDTH, 4, num_layers=2, dropout=0.3, batch_first=True)
    return world(model, inputs(ITEMS, 3, WIDTH), lambda x: model(x)[0].pow(2).mean())


def transformer() -> World:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.2, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return world(model, inputs(4, 3, WIDTH), lambda x: model(x).pow(2).mean())


def convolution() -> World:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    return world(model, inputs(4, 2, 6, 6), lambda x: model(x).pow(2).mean())


def mixture_of_experts() -> World:
    """The balance of the experts is that of the whole batch."""
    model = nn.ModuleDict({"gate": nn.Linear(WIDTH, 2), "experts": nn.ModuleList([net(), net()])})

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        gate = model["gate"](x).softmax(-1)
        out = sum(gate[:, n : n + 1] * expert(x) for n, expert in enumerate(model["experts"]))
        return out.pow(2).mean() + gate.mean(0).pow(2).sum()

    return world(model, inputs(), loss_of)


def variational() -> World:
    model = nn.ModuleDict({"encode": net(out=4), "decode": nn.Linear(2, WIDTH)})

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        mean, spread = model["encode"](x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (spread / 2).exp()
        return F.mse_loss(model["decode"](z), x) + (mean.pow(2) + spread.exp() - spread).mean()

    return world(model, inputs(), loss_of)


def instance_norm() -> World:
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.InstanceNorm1d(3, track_running_stats=True), nn.Flatten())
    return world(model, inputs(ITEMS, 2, 6), lambda x: model(x)[:, :5].pow(2).mean())


def sparse_gradients() -> World:
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2))
    batches = [torch.randint(9, (ITEMS, 3)) for _ in range(3)]
    return world(model, batches, lambda x: model(x).pow(2).mean(), make=lambda p: torch.optim.SGD(p, lr=0.1))


def lazy() -> World:
    model = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return World(model=model, optimizers=[optimizer], batches=inputs(), loss_of=lambda x: model(x).pow(2).mean())
