"""What forward leaves in the model for the next call: hidden states, counters, caches, vectors, switches, hooks."""

import random
from itertools import count
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from tests.training.guard.idioms.idiom import ITEMS, WIDTH, inputs, net, world
from tests.training.guard.world import World


class Counting(nn.Module):
    """A net whose loss depends on how often it was called; how it counts, and on what."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.calls = 0
        self.log: dict[str, Any] = {"calls": 0}
        self.numbers = count(1)
        self.total = torch.zeros(())
        self.own = random.Random(3)
        self.generator = torch.Generator().manual_seed(3)
        self.of_numpy = numpy.random.default_rng(3)
        self.array = numpy.zeros(2)

    def loss(self, x: torch.Tensor, factor: Any) -> torch.Tensor:
        return self.net(x).pow(2).mean() * factor


def _counted(factor: Any) -> World:
    model = Counting()
    return world(model, inputs(), lambda x: model.loss(x, factor(model)))


def curriculum() -> World:
    """The weight of the loss grows with every call."""

    def factor(model: Any) -> Any:
        model.calls += 1
        return model.calls

    return _counted(factor)


def every_second_call() -> World:
    def factor(model: Any) -> Any:
        model.calls += 1
        return 2 if model.calls % 2 else 1

    return _counted(factor)


def counter_in_a_dict() -> World:
    def factor(model: Any) -> Any:
        model.log["calls"] += 1
        return model.log["calls"]

    return _counted(factor)


def counter_of_itertools() -> World:
    return _counted(lambda model: next(model.numbers))


def counter_tensor() -> World:
    def factor(model: Any) -> Any:
        model.total += 1
        return model.total.clone()

    return _counted(factor)


def array_attribute() -> World:
    def factor(model: Any) -> Any:
        model.array[0] += 1
        return float(model.array[0])

    return _counted(factor)


def own_generator_of_python() -> World:
    return _counted(lambda model: model.own.random())


def own_generator_of_torch() -> World:
    return _counted(lambda model: torch.rand((), generator=model.generator))


def own_generator_of_numpy() -> World:
    return _counted(lambda model: model.of_numpy.random())


def random_of_python() -> World:
    return _counted(lambda model: random.random())


def random_of_numpy() -> World:
    return _counted(lambda model: numpy.random.rand())


def counter_around_the_loss() -> World:
    """A number beside the model: not put back, and the log says so."""
    model, calls = net(), [0]

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return model(x).pow(2).mean() * calls[0]

    return world(model, inputs(), loss_of)


class Scaled(torch.autograd.Function):
    """A function of autograd that keeps a running mean in its class."""

    mean = torch.zeros(())
    calls = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Scaled.calls += 1
        Scaled.mean = Scaled.mean * 0.9 + x.detach().mean() * 0.1
        ctx.factor = 1 + Scaled.mean * Scaled.calls
        return x * ctx.factor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.factor


class WithFunction(nn.Module):
    """Uses the function in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Scaled.apply(self.net(x))
        return out.pow(2).mean()


def function_with_state() -> World:
    Scaled.mean, Scaled.calls = torch.zeros(()), 0
    model = WithFunction()
    return world(model, inputs(), model)


class Stateful(nn.Module):
    """A cell that goes on where the last batch has ended; with a gradient through all calls, or cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, 4)
        self.h: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cell(x, self.h)
        self.h = h.detach()
        return h.pow(2).mean()


def stateful_cell() -> World:
    model = Stateful()
    return world(model, inputs(), model)


def hidden_around_the_loss() -> World:
    """Truncated backpropagation: the state is a variable of the loop."""
    model = nn.GRUCell(WIDTH, 4)
    h = torch.zeros(ITEMS, 4)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        nonlocal h
        out = model(x, h)
        h = out.detach()
        return out.pow(2).mean()

    return world(model, inputs(), loss_of)


class Cache:
    """Keys of earlier calls."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []


class Attending(nn.Module):
    """Attends to what earlier calls have put into a cache, an object of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.cache = net(), Cache()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.net(x)
        self.cache.keys.append(out.detach())
        keys = torch.cat(self.cache.keys)
        return ((out @ keys.T).softmax(-1) @ keys - out).pow(2).mean()


def kv_cache() -> World:
    model = Attending()
    return world(model, inputs(), model)


def kv_cache_written_in_place() -> World:
    """A static cache, and where it is filled to."""

    class Static(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.filled, self.keys = net(), 0, torch.zeros(64, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.net(x)
            self.keys[self.filled : self.filled + len(x)] = out.detach()
            self.filled += len(x)
            return (out - self.keys[: self.filled].clone().mean(0)).pow(2).mean()

    model = Static()
    return world(model, inputs(), model)


def spectral_norm() -> World:
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(WIDTH, 5)), nn.Tanh(), nn.Linear(5, 2))
    return world(model, inputs(), lambda x: model(x).pow(2).mean())


def spectral_norm_by_hooks() -> World:
    model = nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(WIDTH, 5)), nn.Tanh(), nn.Linear(5, 2))
    return world(model, inputs(), lambda x: model(x).pow(2).mean())


def weight_norm() -> World:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(WIDTH, 5)), nn.Tanh(), nn.Linear(5, 2))
    return world(model, inputs(), lambda x: model(x).pow(2).mean())


def orthogonal() -> World:
    model = nn.Sequential(parametrizations.orthogonal(nn.Linear(WIDTH, 5)), nn.Tanh(), nn.Linear(5, 2))
    return world(model, inputs(), lambda x: model(x).pow(2).mean())


class Symmetric(nn.Module):
    """A parametrization of the user's."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).T


def parametrization() -> World:
    model = nn.Linear(WIDTH, WIDTH)
    parametrize.register_parametrization(model, "weight", Symmetric())
    return world(model, inputs(), lambda x: model(x).pow(2).mean())


def observers() -> World:
    """Quantisation-aware training: the range of activations is observed in forward."""
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    quantize = FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
    model = nn.Sequential(nn.Linear(WIDTH, 5), quantize, nn.Linear(5, 2)).float()
    return world(model, [x.float() for x in inputs()], lambda x: model(x).pow(2).mean())


def embedding_with_max_norm() -> World:
    """The rows that are looked up are scaled down in forward."""
    model = nn.Sequential(nn.Embedding(9, 4, max_norm=1.0), nn.Linear(4, 2))
    batches = [torch.randint(9, (ITEMS, 3)) for _ in range(3)]
    return world(model, batches, lambda x: model(x).pow(2).mean())


class Normed(nn.Module):
    """A trained weight that forward halves through `.data`, which no version tells."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data.mul_(0.9)
        return F.linear(x, self.weight).pow(2).mean()


def trained_weight_written_unseen() -> World:
    model = Normed()
    return world(model, inputs(), model)


def evaluated_in_between() -> World:
    """Pseudo-labels in evaluation mode, and back to the mode that was found."""
    model = net(middle=[nn.Dropout(0.5)])

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        was_training = model.training
        model.eval()
        with torch.no_grad():
            target = model(x)
        model.train(was_training)
        return (model(x) - target).pow(2).mean()

    return world(model, inputs(), loss_of)


def gradients_switched_off() -> World:
    """Without a context manager, and switched on again at the end."""
    model = net()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(False)
        target = model(x).sign()
        torch.set_grad_enabled(True)
        return (model(x) - target).pow(2).mean()

    return world(model, inputs(), loss_of)


def hook_for_a_while() -> World:
    """Features taken by a hook that is removed at the end: an attempt that fails in between leaves it."""
    model = net()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        features: list[torch.Tensor] = []
        handle = model[0].register_forward_hook(lambda module, args, out: out * 1.1)
        out = model(x)
        handle.remove()
        return out.pow(2).mean() + sum(features, torch.zeros(()))

    return world(model, inputs(), loss_of)


def gradient_hook_for_a_while() -> World:
    """A hook on a parameter's gradient that is never removed: it doubles with every step that has passed."""
    model = net()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        model[0].weight.register_hook(lambda gradient: gradient * 1.5)
        return model(x).pow(2).mean()

    return world(model, inputs(), loss_of)


def hook_with_side_effects() -> World:
    """A hook that counts in its module."""
    model = net()
    model.seen = torch.zeros(5)

    def observe(module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        model.seen += out.detach().mean(0)
        return out + model.seen

    model[0].register_forward_hook(observe)
    return world(model, inputs(), lambda x: model(x).pow(2).mean())


class Growing(nn.Module):
    """Makes its layers at the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "second"):
            self.second = nn.Linear(5, 2)
        return self.second(self.first(x)).pow(2).mean()


def layer_made_in_forward() -> World:
    model = Growing()
    return world(model, inputs(), model)


def running_norm_of_the_user() -> World:
    """Statistics that forward rebinds, as attributes."""

    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.mean = net(), torch.zeros(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.net(x)
            self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
            return (out - self.mean).pow(2).mean()

    model = Running()
    return world(model, inputs(), model)
