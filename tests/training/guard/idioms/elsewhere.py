"""State that a loss depends on and that is neither an attribute of the model nor a variable of the loss function: in
hooks, helpers, classes, layers of PyTorch's, optimizers, caches, and in the switches of the whole process."""

import argparse
import array
import contextvars
import functools
import io
import multiprocessing
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from itertools import count, cycle
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from tests.training.guard.idioms import elsewhere_helper
from tests.training.guard.idioms.idiom import ITEMS, WIDTH, frozen, inputs, net, world
from tests.training.guard.world import World

Factor = Callable[[], Any]


def _times(factor: Factor, model: nn.Module | None = None) -> World:
    """A net whose loss is multiplied by a factor that grows with each call."""
    model = model if model is not None else net()
    return world(model, inputs(), lambda x: model(x).pow(2).mean() * factor())


# ---- functions and their variables


def counter_of_a_helper() -> World:
    """A number in a closure of a closure: not put back, and the log says so."""

    def counter() -> Factor:
        calls = 0

        def count() -> int:
            nonlocal calls
            calls += 1
            return calls

        return count

    return _times(counter())


def attribute_of_a_function() -> World:
    def factor() -> int:
        factor.calls += 1
        return factor.calls

    factor.calls = 0
    return _times(factor)


def helper_in_a_dict() -> World:
    """A closure in a container, with a tensor of its own."""
    mean = torch.zeros(())

    def moving() -> torch.Tensor:
        mean.add_(1)
        return mean.clone()

    helpers = {"moving": moving}
    return _times(lambda: helpers["moving"]())


def helper_of_the_model() -> World:
    """The model has a function as an attribute, and the function a list."""

    class Scaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            seen: list[torch.Tensor] = []

            def scale(x: torch.Tensor) -> torch.Tensor:
                seen.append(x.detach().mean())
                return x * len(seen)

            self.scale = scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale(self.net(x))

    return _times(lambda: 1, Scaling())


def generator_in_a_dict() -> World:
    """A generator that the loss function takes from."""

    def noise() -> Iterator[torch.Tensor]:
        while True:
            yield torch.randn(())

    sources = {"noise": noise()}
    return _times(lambda: next(sources["noise"]))


def generator_that_counts() -> World:
    """It stands at the same place with the same variables each time, of which one has gone on."""

    def ramp() -> Iterator[int]:
        numbers = count(1)
        while True:
            yield next(numbers)

    factors = ramp()
    return _times(lambda: next(factors))


def loader_in_an_object() -> World:
    """A loader's iterator, begun anew where it ends, kept by an object around the loss function."""

    class Second:
        def __init__(self) -> None:
            self.loader = DataLoader(torch.arange(1.0, 7.0).double(), batch_size=1)
            self.batches = iter(self.loader)

        def next(self) -> torch.Tensor:
            try:
                return next(self.batches)
            except StopIteration:
                self.batches = iter(self.loader)
                return next(self.batches)

    second = Second()
    return _times(lambda: second.next().sum())


def cycled() -> World:
    factors = cycle((1, 2, 3))
    return _times(lambda: next(factors))


def zipped_around_the_loss() -> World:
    """Factors come from two iterators at once."""
    factors = zip(iter([1, 2, 3, 4, 5, 6, 7, 8]), map(float, iter(range(8))), strict=True)
    return _times(lambda: sum(next(factors)))


def zipped_and_not_used() -> World:
    """An iterator that stays where it is is in nobody's way, nor is a file that is written."""
    pairs = enumerate(zip([1, 2], "ab", strict=True))
    log = tempfile.TemporaryFile("w")  # noqa: SIM115  # it is open as long as the training

    def factor() -> int:
        log.write(repr(pairs))
        return 1

    return _times(factor)


def file_of_factors() -> World:
    factors = io.StringIO("1\n2\n3\n4\n5\n6\n7\n8\n")
    return _times(lambda: float(factors.readline()))


def global_of_another_module() -> World:
    elsewhere_helper.calls = 0
    elsewhere_helper.seen.clear()
    return _times(elsewhere_helper.counted)


def function_of_another_module() -> World:
    """Reached by the module's name, as most helpers are."""
    elsewhere_helper.calls = 0
    elsewhere_helper.mean.zero_()
    return _times(lambda: elsewhere_helper.moved())


def decorated() -> World:
    """A loss function in three wrappers, of which the innermost counts."""
    model, seen = net(), torch.zeros(())

    def wrapped(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(function)
        def call(x: Any) -> Any:
            return function(x)

        return call

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        seen.add_(1)
        return model(x).pow(2).mean() * seen.clone()

    return world(model, inputs(), wrapped(wrapped(wrapped(wrapped(wrapped(loss_of))))))


def beside_what_lies_deep() -> World:
    """A list in a list in a list, and so on, is not followed to its end; what is recorded after it is."""
    model, deep = net(), []
    for _ in range(40):
        deep = [deep]
    kept = {"mean": torch.zeros(()), "deep": deep}

    def factor() -> torch.Tensor:
        kept["mean"].add_(1)
        return kept["mean"].clone()

    return _times(factor, model)


def module_around_the_model() -> World:
    """The loss function is a module, and not one of the guard's."""

    class Criterion(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model, self.calls = model, 0
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.scale.add_(0.5)
            return self.model(x).pow(2).mean() * self.calls * self.scale.clone()

    model = net()
    return world(model, inputs(), Criterion(model))


def cached_noise() -> World:
    """A cache of what was drawn at random."""

    @functools.cache
    def noise(width: int) -> torch.Tensor:
        return torch.randn(width)

    model = net()
    return world(model, inputs(), lambda x: (model(x) + noise(4)).pow(2).mean())


def cached_noise_of_each_step() -> World:
    """New entries come to a cache that has some."""
    step = [0]

    @functools.lru_cache(maxsize=8)
    def noise(step: int, width: int) -> torch.Tensor:
        return torch.randn(width)

    model = net()
    made = world(model, inputs(), lambda x: (model(x) + noise(step[0], 4)).pow(2).mean())

    def begin(number: int) -> None:
        step[0] = number

    made.begin = begin
    return made


# ---- classes and odd objects


def counter_of_a_class() -> World:
    """The module counts in its class, by no name."""

    class Counted(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            type(self).calls += 1
            return self.net(x) * self.calls

    return _times(lambda: 1, Counted())


def counter_of_an_objects_class() -> World:
    class Meter:
        total = torch.zeros(())

        def next(self) -> torch.Tensor:
            type(self).total = type(self).total + 1
            return self.total

    meter = Meter()
    return _times(lambda: meter.next())


def namespace_of_options() -> World:
    options = argparse.Namespace(scale=torch.ones(()))

    def factor() -> torch.Tensor:
        options.scale = options.scale * 1.5
        return options.scale

    return _times(factor)


def options_of_the_model() -> World:
    model = net()
    model.options = argparse.Namespace(calls=0)

    def factor() -> int:
        model.options.calls += 1
        return model.options.calls

    return _times(factor, model)


class _Kept(nn.Module):
    """A net with an object that counts."""

    def __init__(self, kept: Any) -> None:
        super().__init__()
        self.net, self.kept = net(), kept

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def local_of_a_thread() -> World:
    kept = threading.local()
    kept.calls = 0
    model = _Kept(kept)

    def factor() -> int:
        model.kept.calls += 1
        return model.kept.calls

    return _times(factor, model)


def context_variable() -> World:
    model = _Kept(contextvars.ContextVar("calls", default=0))

    def factor() -> int:
        model.kept.set(model.kept.get() + 1)
        return model.kept.get()

    return _times(factor, model)


def array_of_python() -> World:
    model = _Kept(array.array("d", [0.0]))

    def factor() -> float:
        model.kept[0] += 1
        return model.kept[0]

    return _times(factor, model)


def shared_value() -> World:
    model = _Kept(multiprocessing.Value("i", 0))

    def factor() -> int:
        with model.kept.get_lock():
            model.kept.value += 1
        return model.kept.value

    return _times(factor, model)


def weak_dictionary() -> World:
    """What is known of each module, as long as the module lives."""
    model = _Kept(weakref.WeakKeyDictionary())

    def factor() -> int:
        model.kept[model.net] = model.kept.get(model.net, 0) + 1
        return model.kept[model.net]

    return _times(factor, model)


def attribute_of_a_list() -> World:
    class Log(list):
        pass

    model = _Kept(Log())
    model.kept.calls = 0

    def factor() -> int:
        model.kept.calls += 1
        return model.kept.calls

    return _times(factor, model)


def own_dataset() -> World:
    """Hard examples: a dataset whose weights the loss function changes."""

    class Weighted(Dataset):
        def __init__(self) -> None:
            self.calls, self.weights = 0, torch.ones(ITEMS)

    data, model = Weighted(), net()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        each = model(x).pow(2).mean(1)
        data.weights = data.weights + each.detach().mean()
        return (each * data.weights[: len(each)]).mean()

    return world(model, inputs(), loss_of)


_SEEN: list[torch.Tensor] = []


class Remembering:
    """Remembers in a global list what its method is given."""

    def next(self, x: torch.Tensor) -> torch.Tensor:
        _SEEN.append(x.detach().mean())
        return torch.stack(_SEEN).sum()


def method_with_a_global() -> World:
    _SEEN.clear()
    remembering, model = Remembering(), net()
    return world(model, inputs(), lambda x: model(x).pow(2).mean() * remembering.next(x))


class Remembered:
    """Remembers in a global list what it is called with, and what a property is read for."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        _SEEN.append(x.detach().mean())
        return torch.stack(_SEEN).sum()

    @property
    def mean(self) -> torch.Tensor:
        _SEEN.append(torch.ones(()))
        return torch.stack(_SEEN).mean()


def callable_with_a_global() -> World:
    _SEEN.clear()
    remembering, model = Remembered(), net()
    return world(model, inputs(), lambda x: model(x).pow(2).mean() * remembering(x))


def property_with_a_global() -> World:
    _SEEN.clear()
    remembering = Remembered()
    return _times(lambda: remembering.mean * len(_SEEN))


class Scripted(nn.Module):
    """Counts and remembers in attributes."""

    calls: int

    def __init__(self) -> None:
        super().__init__()
        self.net, self.calls, self.mean = nn.Linear(WIDTH, 4), 0, torch.zeros(4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("moved", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.moved += 1
        out = self.norm(self.net(x)) + self.moved.clone()
        self.mean = self.mean + out.detach().mean(0)
        return out * self.calls + self.mean


def scripted() -> World:
    """TorchScript keeps attributes outside of Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.jit.script(Scripted())
    return _times(lambda: 1, model)


def attribute_of_a_tensor() -> World:
    scale = torch.ones(())

    def factor() -> torch.Tensor:
        scale.moved = getattr(scale, "moved", scale) * 1.5
        return scale.moved

    return _times(factor)


def average_of_a_package() -> World:
    """An object whose class an installed package has, with tensors in a list."""
    average = type("Average", (), {"__module__": "pytest"})()
    average.shadows = [torch.zeros(())]

    def factor() -> torch.Tensor:
        average.shadows[0].add_(1)
        return average.shadows[0].clone()

    return _times(factor)


def averaged_model() -> World:
    """PyTorch's own average of a model, moved where the loss is computed."""
    model = net()
    average = torch.optim.swa_utils.AveragedModel(model)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        average.update_parameters(model)
        with torch.no_grad():
            target = average(x)
        return (model(x * 0.9) - target).pow(2).mean()

    return world(model, inputs(), loss_of)


class Factors(torch.optim.Optimizer):
    """An optimizer whose state is in lists, and which counts for itself."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for group in self.param_groups:
            for one in group["params"]:
                [mean] = self.state[one].setdefault("means", [torch.zeros_like(one)])
                mean.mul_(0.9).add_(one.grad)
                one.sub_(mean, alpha=group["lr"] / self.steps)


def judge_with_factors() -> World:
    model, judge = net(), nn.Linear(4, 1)
    judging = Factors(judge.parameters())

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        out = model(x)
        judging.zero_grad()
        (judge(out.detach()).mean() - 1).pow(2).backward()
        judging.step()
        return judge(out).pow(2).mean()

    return world(model, inputs(), loss_of)


# ---- hooks


def average_in_a_forward_hook() -> World:
    """An exponential moving average that a hook keeps in a closure, and the next call reads."""
    model, average = net(), {}

    def keep(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        average["mean"] = 0.9 * average.get("mean", 0.0) + 0.1 * out.detach().mean(0)
        return out - average["mean"]

    model[0].register_forward_hook(keep)
    return _times(lambda: 1, model)


def tensor_in_a_forward_hook() -> World:
    model, average = net(), torch.zeros(5)

    def keep(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        average.mul_(0.9).add_(out.detach().mean(0))
        return out - average.clone()

    model[0].register_forward_hook(keep)
    return _times(lambda: 1, model)


def gradient_hook_that_writes_a_buffer() -> World:
    """Gradients are scaled by how large they were, which a buffer knows."""
    model = net()
    model.register_buffer("norm", torch.ones(()))

    def scale(gradient: torch.Tensor) -> torch.Tensor:
        model.norm.mul_(0.9).add_(0.1 * gradient.norm())
        return gradient / model.norm.clone()

    model[0].weight.register_hook(scale)
    return _times(lambda: 1, model)


def gradient_hook_with_a_closure() -> World:
    model, norm = net(), torch.ones(())

    def scale(gradient: torch.Tensor) -> torch.Tensor:
        norm.mul_(0.9).add_(0.1 * gradient.norm())
        return gradient / norm.clone()

    model[2].weight.register_hook(scale)
    return _times(lambda: 1, model)


def backward_hook_with_a_closure() -> World:
    model, seen = net(), []

    def scale(module: nn.Module, inner: Any, outer: Any) -> Any:
        seen.append(outer[0].detach().mean())
        return tuple(one * len(seen) for one in inner)

    model[2].register_full_backward_hook(scale)
    return _times(lambda: 1, model)


def bound_hook() -> World:
    """A hook that is a method of an object."""

    class Observer:
        def __init__(self) -> None:
            self.mean = torch.zeros(5)

        def observe(self, module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
            self.mean = self.mean + out.detach().mean(0)
            return out + self.mean

    model = net()
    model[0].register_forward_hook(Observer().observe)
    return _times(lambda: 1, model)


# ---- layers of PyTorch's


def dropout_that_grows() -> World:
    """Scheduled dropout, in forward."""

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.dropout = net(), nn.Dropout(0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.dropout.p = min(0.9, self.dropout.p * 1.5)
            return self.dropout(self.net(x))

    return _times(lambda: 1, Dropping())


def momentum_of_a_norm() -> World:
    model = net(middle=[nn.BatchNorm1d(5, momentum=0.5)])

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        model[1].momentum *= 0.9
        return model(x).pow(2).mean() + (model[0](x) - model[1].running_mean.clone()).pow(2).mean()

    return world(model, inputs(), loss_of)


def attribute_put_on_a_layer() -> World:
    model = net()

    def factor() -> int:
        model[0].calls = getattr(model[0], "calls", 0) + 1
        return model[0].calls

    return _times(factor, model)


def attribute_of_a_parameter() -> World:
    """An accumulator that a parameter carries, as `main_grad` is."""
    model = net()
    model[0].weight.seen = torch.zeros(())

    def factor() -> torch.Tensor:
        model[0].weight.seen.add_(1)
        return model[0].weight.seen.clone()

    return _times(factor, model)


def number_of_a_parameter() -> World:
    model = net()

    def factor() -> int:
        model[0].weight.calls = getattr(model[0].weight, "calls", 0) + 1
        return model[0].weight.calls

    return _times(factor, model)


# ---- optimizers


def rate_set_in_the_loss() -> World:
    """Warm-up: the learning rate is set where the loss is computed."""
    made = _times(lambda: 1)
    inner = made.loss_of

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        for group in made.optimizers[0].param_groups:
            group["lr"] *= 1.1
        return inner(x)

    made.loss_of = loss_of
    return made


def scheduler_in_the_loss() -> World:
    made = _times(lambda: 1)
    inner = made.loss_of
    scheduler = torch.optim.lr_scheduler.ExponentialLR(made.optimizers[0], 0.7)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        result = inner(x)
        scheduler.step()
        return result

    made.loss_of = loss_of
    return made


def judge_with_state() -> World:
    """A GAN whose judge, no module of the guard's, steps within the loss function by an optimizer with state."""
    model, judge = net(), net(out=1)
    judging = torch.optim.Adam(judge.parameters(), lr=0.01)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        judging.zero_grad()
        (judge(model[0](x.detach()).detach()[:, :1].expand(-1, WIDTH)).mean() - 1).pow(2).backward()
        judging.step()
        return judge(F.pad(model(x), (0, 2))).pow(2).mean()

    return world(model, inputs(), loss_of)


def own_scaler() -> World:
    """A gradient scaler of the judge's, which the loss function updates."""
    model, judge = net(), nn.Linear(4, 1)
    judging = torch.optim.SGD(judge.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        out = model(x)
        judging.zero_grad()
        scaler.scale(judge(out.detach()).pow(2).mean()).backward()
        scaler.step(judging)
        scaler.update()
        return judge(out).pow(2).mean() * scaler.get_scale()

    return world(model, inputs(), loss_of)


def perturbation_with_a_gradient() -> World:
    """Adversarial training for free: a leaf beside the model, whose gradient adds up over calls."""
    model, delta = net(), torch.zeros(WIDTH, requires_grad=True)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        model((x + delta).detach() + delta).pow(2).mean().backward(inputs=[delta])
        return model(x + delta.grad.sign() + 0.1 * delta.grad).pow(2).mean()

    return world(model, inputs(), loss_of)


# ---- functional calls, autograd, checkpoints


def functional_call_of_an_average() -> World:
    """A teacher of tensors in a dict, moved in the loss function."""
    model = net()
    teacher = {name: one.detach().clone() for name, one in model.named_parameters()}

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for name, one in model.named_parameters():
                teacher[name].lerp_(one, 0.5)
            target = torch.func.functional_call(model, teacher, (x,))
        return (model(x * 0.9) - target).pow(2).mean()

    return world(model, inputs(), loss_of)


def functional_call_of_a_new_dict() -> World:
    model = net()
    teacher = {name: one.detach().clone() for name, one in model.named_parameters()}

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        nonlocal teacher
        teacher = {name: 0.5 * teacher[name] + 0.5 * one.detach() for name, one in model.named_parameters()}
        target = torch.func.functional_call(model, teacher, (x,))
        return (model(x * 0.9) - target).pow(2).mean()

    return world(model, inputs(), loss_of)


class Counted(torch.autograd.Function):
    """Counts in backward, in a dict of the class."""

    log: ClassVar[dict[str, Any]] = {}

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        Counted.log["calls"] = Counted.log.get("calls", 0) + 1
        return gradient * Counted.log["calls"]


def function_that_counts_in_backward() -> World:
    Counted.log = {"calls": 0}
    model = net()
    return world(model, inputs(), lambda x: Counted.apply(model(x)).pow(2).mean())


def checkpoint_with_random_numbers() -> World:
    model = net(middle=[nn.Dropout(0.5)])
    return world(model, inputs(), lambda x: checkpoint(model, x, use_reentrant=False).pow(2).mean())


def checkpoint_that_draws_again() -> World:
    """Other random numbers in backward than in forward, as the user has asked for."""
    model = net(middle=[nn.Dropout(0.5)])
    return world(
        model,
        inputs(),
        lambda x: checkpoint(model, x, use_reentrant=False, preserve_rng_state=False).pow(2).mean(),
    )


def gradients_of_an_auxiliary_loss() -> World:
    """A backward within the loss function: its gradients are part of the step's."""
    model = net()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        (model(x).abs().mean() * 0.1).backward()
        return model(x).pow(2).mean()

    return world(model, inputs(), loss_of)


def tied_by_reference() -> World:
    """One module under two names, which counts."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = nn.Linear(WIDTH, WIDTH), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.inner(x) * self.calls

    shared = Shared()
    return _times(lambda: 1, nn.Sequential(shared, nn.Tanh(), shared))


def learned_queue_in_a_list() -> World:
    """Embeddings of earlier batches in a list of lists."""
    model, queue = net(), [[torch.zeros(4)], []]

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        out = model(x)
        queue[0].append(out.detach().mean(0))
        return (out - torch.stack(queue[0]).mean(0)).pow(2).mean()

    return world(model, inputs(), loss_of)


def teacher_in_a_class() -> World:
    """A teacher as an attribute of a class, so that it is no module of the model's."""

    class Student(nn.Module):
        teacher = None

        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            type(self).teacher = [frozen(net())]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            [teacher] = type(self).teacher
            with torch.no_grad():
                for one, other in zip(teacher.parameters(), self.net.parameters(), strict=True):
                    one.data.lerp_(other, 0.5)
            return self.net(x) - teacher(x)

    return _times(lambda: 1, Student())


# ---- switches of the process


def autocast_by_hand() -> World:
    """Entered without `with`, and left open by an error in between."""
    model = net().float()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        mixed = torch.autocast("cpu", dtype=torch.bfloat16)
        mixed.__enter__()
        out = model(x)
        mixed.__exit__(None, None, None)
        return (out.float() + model(x)).pow(2).mean()

    return world(model, [one.float() for one in inputs()], loss_of)


def autocast_switched() -> World:
    model = net().float()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        torch.set_autocast_enabled("cpu", enabled=True)
        out = model(x)
        torch.set_autocast_enabled("cpu", enabled=False)
        torch.clear_autocast_cache()
        return (out.float() + model(x)).pow(2).mean()

    return world(model, [one.float() for one in inputs()], loss_of)


def default_type_switched() -> World:
    """New tensors are of another type until the loss function has ended."""
    model = net()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        kept = torch.get_default_dtype()
        noise = torch.randn(4)
        torch.set_default_dtype(torch.float32)
        out = model(x) + torch.full((4,), 1 / 3).double() + noise
        torch.set_default_dtype(kept)
        return out.pow(2).mean()

    return world(model, inputs(), loss_of)


def saved_tensors_packed_by_hand() -> World:
    """Activations are kept in half the bytes, by hooks that an error leaves in place."""
    model = net()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        packing = torch.autograd.graph.saved_tensors_hooks(lambda one: one.float(), lambda one: one.double())
        out = model(x)
        packing.__enter__()
        half = out.exp()
        packing.__exit__(None, None, None)
        return half.mean()

    return world(model, inputs(), loss_of)
