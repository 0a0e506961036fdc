"""State that forward or backward changes: statistics in backward, hooks of gradients, caches, schedules, meters."""

import copy
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.training.guard.idioms.expected import Expected
from tests.training.guard.idioms.idiom import ITEMS, STEPS, WIDTH, frozen, inputs, net, world
from tests.training.guard.world import World

HALF = ITEMS // 2

EXPECTED: dict[str, Expected] = {
    "delayed_scaling_of_eight_bits": "coupled",  # the next call's scales come of this one's, in both directions
    "activation_balancer": "coupled",  # backward looks at the share of positive items
    "optimizer_in_backward": "coupled",  # weights have moved when the second part is computed
    "slow_gradients_amplified_in_accumulate_hooks": "coupled",  # an average of gradients moves with every backward
    "weights_rounded_by_a_forward_pre_hook": "parts",  # and put back by a forward hook
    "balancer_of_losses_at_the_output": "coupled",  # divides by running means of norms
    "learned_step_quantiser": "coupled",  # the step's gradient is scaled by the number of elements of the batch
    "rotary_cache_that_grows": "parts",  # the cache is a pure function of the length
    "temporal_ensembling_by_item": "parts",  # each item reads and writes its own row
    "ring_of_many_losses": "coupled",  # the loss is divided by what the ring has, where each call writes
    "rehearsal_reservoir": "coupled",  # the second part rehearses the first
    "uncertainty_weighting": "parts",
    "gradnorm_weights": "coupled",  # weights of losses move with every call
    "dynamic_weight_average_of_meters": "parts",  # meters add up too: they weigh with the number of items
    "mean_teacher_moved_between_steps": "parts",
    "logger_that_collects": "parts",  # the gradient; the log of two parts has two entries
    "problem_type_set_at_first_call": "parts",  # set once, to what it would be set to again
    "scheduled_sampling": "random",
    "stochastic_depth_of_whole_blocks": "random",
    "gumbel_temperature_lowered_in_forward": "coupled",
    "hyper_network_sets_weights": "parts",
    "hidden_states_by_stream": "parts",  # each item goes on from its own state
    "gradient_reversal_with_warm_start": "coupled",  # the strength rises with every call
    "binary_weights_with_originals": "parts",  # the originals move between steps only
    "sharpness_by_power_iteration": "coupled",  # the vector turns with every call
    "reversible_block": "parts",
    "checkpointed_running_norm": "coupled",  # moves in forward, and again in backward
    "weight_gradient_fused_into_an_accumulator": "parts",  # what backward adds to the accumulator adds up
}


def _uneven(*sizes: int) -> list[torch.Tensor]:
    """Inputs of each step, of which the second half is three times as large."""
    made = inputs(*sizes)
    for one in made:
        one[HALF:] *= 3
    return made


def _labelled() -> list[dict[str, torch.Tensor]]:
    return [{"x": x, "y": torch.randint(0, 4, (ITEMS,))} for x in _uneven()]


# ---- backward changes something


class Delayed:
    """Rounds to few levels; the scale comes of the largest values of the last calls."""

    def __init__(self, scale: float) -> None:
        self.history, self.scale = torch.zeros(4), torch.tensor(scale)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.scale
        self.history = self.history.roll(1)
        self.history[0] = x.abs().max()
        self.scale = 4 / self.history.max().clamp(min=0.001)
        return (x * scale).round() / scale


class Quantised(torch.autograd.Function):
    """Rounds activations in forward, and their gradient in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ahead: Delayed, back: Delayed) -> torch.Tensor:
        ctx.back = back
        return ahead(x.detach())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.back(gradient), None, None


def delayed_scaling_of_eight_bits() -> World:
    """Transformer Engine's recipe: histories of the largest value, of activations and of gradients."""

    class Layer(nn.Linear):
        def __init__(self, width: int, out: int) -> None:
            super().__init__(width, out)
            self.scales = {"ahead": Delayed(4.0), "back": Delayed(256.0)}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = Quantised.apply(super().forward(x), *self.scales.values())
            return out

    model = nn.Sequential(Layer(WIDTH, 5), nn.Tanh(), Layer(5, 4))
    return world(model, _uneven(), lambda x: model(x).pow(2).mean())


class Balanced(torch.autograd.Function):
    """The identity, whose backward pushes features up that are negative in too many items."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        share = (x > 0).to(gradient.dtype).mean(0, keepdim=True)
        return gradient - gradient.abs() * (0.8 - share).clamp(min=0) * 4


def activation_balancer() -> World:
    """Icefall's balancer: the loss adds up, and its gradient does not."""
    model = net()
    batches = inputs()
    for one in batches:
        one[HALF:] += 2
    return world(model, batches, lambda x: model[2](torch.tanh(Balanced.apply(model[0](x)))).pow(2).mean())


def optimizer_in_backward() -> World:
    """Weights are updated as soon as their gradient is there, by an optimizer for each of them."""
    model = net()
    own = {one: torch.optim.Adam([one], lr=0.05) for one in model[0].parameters()}

    def update(parameter: torch.Tensor) -> None:
        own[parameter].step()
        own[parameter].zero_grad()

    for one in own:
        one.register_post_accumulate_grad_hook(update)
    made = world(model, _uneven(), lambda x: model(x).pow(2).mean())
    made.optimizers = [torch.optim.SGD(model[2].parameters(), lr=0.1)]
    return made


def slow_gradients_amplified_in_accumulate_hooks() -> World:
    """Grokfast: a running mean of each parameter's gradient is added to it."""
    model = net()
    slow: dict[str, torch.Tensor] = {}

    def amplifying(name: str) -> Callable[[torch.Tensor], None]:
        def amplify(parameter: torch.Tensor) -> None:
            gradient = parameter.grad
            assert gradient is not None
            slow[name] = 0.8 * slow[name] + 0.2 * gradient if name in slow else gradient.clone()
            gradient.add_(slow[name], alpha=2.0)

        return amplify

    for name, one in model.named_parameters():
        one.register_post_accumulate_grad_hook(amplifying(name))
    return world(model, _uneven(), lambda x: model(x).pow(2).mean())


class Fused(torch.autograd.Function):
    """A linear layer whose backward adds the weight's gradient to an accumulator, and returns none."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        x, weight = ctx.saved_tensors
        gradient = gradient.to(weight.dtype)
        weight.main_grad.add_(gradient.T @ x.to(weight.dtype))
        return gradient @ weight, None


def weight_gradient_fused_into_an_accumulator() -> World:
    """Megatron's accumulation fusion: `main_grad` becomes the gradient before the optimizer's step."""
    model = net()
    weight: Any = model[2].weight
    weight.main_grad = torch.zeros_like(weight)

    def take() -> None:
        weight.grad = weight.main_grad.clone()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return (Fused.apply(torch.tanh(model[0](x)), weight) + model[2].bias).pow(2).mean()

    made = world(model, _uneven(), loss_of, make=lambda p: torch.optim.Adam(p, lr=0.05), before_step=take)

    def begin(number: int) -> None:
        weight.main_grad.zero_()

    made.begin = begin
    return made


class Reversible(torch.autograd.Function):
    """Two streams; backward makes the inputs anew from the outputs, and runs a backward of its own."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: torch.Tensor, one: nn.Module, other: nn.Module) -> torch.Tensor:
        ctx.one, ctx.other = one, other
        left, right = x.detach().chunk(2, -1)
        left = left + one(right)
        right = right + other(left)
        ctx.save_for_backward(left, right)
        return torch.cat([left, right], -1)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        left, right = (one.detach() for one in ctx.saved_tensors)
        of_left, of_right = gradient.chunk(2, -1)
        with torch.enable_grad():
            left.requires_grad_()
            moved = ctx.other(left)
            moved.backward(of_right)
        right = right - moved.detach()
        of_left = of_left + left.grad
        with torch.enable_grad():
            right.requires_grad_()
            ctx.one(right).backward(of_left)
        return torch.cat([of_left, of_right + right.grad], -1), None, None


def reversible_block() -> World:
    """RevNet: parameters get their gradient from a backward inside of backward."""
    half = WIDTH // 2
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.Sequential(nn.Linear(half, half), nn.Tanh()),
        nn.Sequential(nn.Linear(half, half), nn.Tanh()),
        nn.Linear(WIDTH, 4),
    )
    return world(model, _uneven(), lambda x: model[3](Reversible.apply(model[0](x), model[1], model[2])).pow(2).mean())


def checkpointed_running_norm() -> World:
    """A block with a running mean is computed again in backward, and its mean moves a second time."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, 5)
            self.register_buffer("mean", torch.zeros(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.inner(x)
            self.mean = 0.5 * self.mean + 0.5 * out.detach().mean(0)
            return torch.tanh(out - self.mean)

    model = nn.Sequential(Block(), nn.Linear(5, 4))
    return world(model, _uneven(), lambda x: model[1](checkpoint(model[0], x, use_reentrant=False)).pow(2).mean())


# ---- forward changes weights for a while


def weights_rounded_by_a_forward_pre_hook() -> World:
    """Master weights: a pre-hook puts rounded weights in, and a hook puts the masters back."""
    model = net()

    def put_in(module: Any, args: Any) -> None:
        module.master = module.weight.data
        module.weight.data = (module.weight.data * 8).round() / 8

    def put_back(module: Any, args: Any, out: torch.Tensor) -> None:
        module.weight.data = module.__dict__.pop("master")

    for layer in (model[0], model[2]):
        layer.register_forward_pre_hook(put_in)
        layer.register_forward_hook(put_back)
    return world(model, _uneven(), lambda x: model(x).pow(2).mean())


def binary_weights_with_originals() -> World:
    """BinaryNet: forward sets weights to signs, and the originals, attributes of the weights, are trained."""

    class Binary(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight: Any = self.weight
            if not hasattr(weight, "org"):
                weight.org = weight.data.clone()
            weight.data = weight.org.sign() * 0.5
            return F.linear(x, weight, self.bias)

    model = nn.Sequential(Binary(WIDTH, 5), nn.Tanh(), Binary(5, 4))
    weights: list[Any] = [model[0].weight, model[2].weight]

    def put_back() -> None:
        for weight in weights:
            weight.data.copy_(weight.org)

    def begin(number: int) -> None:
        for weight in weights:
            if hasattr(weight, "org"):
                weight.org.copy_(weight.data.clamp_(-1, 1))

    made = world(model, _uneven(), lambda x: model(x).pow(2).mean(), before_step=put_back)
    made.begin = begin
    return made


def hyper_network_sets_weights() -> World:
    """A net makes another layer's weight, and sets it as an attribute, with its graph."""
    main = nn.Linear(WIDTH, 4)
    del main.weight
    model = nn.ModuleDict({"main": main, "hyper": nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4 * WIDTH))})
    model.register_parameter("code", nn.Parameter(torch.randn(3)))

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        main.weight = model["hyper"](model.code).view(4, WIDTH)
        return main(x).pow(2).mean()

    return world(model, _uneven(), loss_of)


def learned_step_quantiser() -> World:
    """LSQ after training: a step is set from the first batch, its gradient is scaled by the number of elements."""

    class Quantiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = nn.Parameter(torch.ones(()))
            self.register_buffer("is_set", torch.zeros((), dtype=torch.bool))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.is_set:
                self.step.data.copy_(2 * x.detach().abs().mean())
                self.is_set.fill_(value=True)
            share = x.numel() ** -0.5
            step = (self.step * (1 - share)).detach() + self.step * share
            scaled = (x / step).clamp(-2, 1)
            return (scaled + (scaled.round() - scaled).detach()) * step

    model = nn.Sequential(frozen(nn.Linear(WIDTH, 5)), Quantiser(), nn.Tanh(), frozen(nn.Linear(5, 4)))
    with torch.no_grad():
        model[3].weight *= 4
    model[3].bias.requires_grad_()
    return world(model, _uneven(), lambda x: model(x).pow(2).mean())


# ---- weights of losses


def balancer_of_losses_at_the_output() -> World:
    """EnCodec's balancer: the gradients of several losses at the output are divided by running means of their norms."""
    model = net()
    sums: dict[str, float] = defaultdict(float)
    shares = {"near": 1.0, "small": 1.0}
    count = [0.0]

    def loss_of(batch: Any) -> torch.Tensor:
        out = model(batch["x"])
        losses = {"near": F.mse_loss(out, batch["y"]), "small": out.pow(2).mean()}
        count[0] = 0.7 * count[0] + 1
        combined = torch.zeros_like(out)
        for name, loss in losses.items():
            (gradient,) = torch.autograd.grad(loss, [out], retain_graph=True)
            sums[name] = 0.7 * sums[name] + gradient.norm(dim=1).mean().item()
            combined += shares[name] / 2 * gradient / (0.001 + sums[name] / count[0])
        return (out * combined).sum()

    return world(model, [{"x": x, "y": y} for x, y in zip(_uneven(), _uneven(ITEMS, 4), strict=True)], loss_of)


def uncertainty_weighting() -> World:
    """Two tasks with a learned variance each."""
    model = nn.ModuleDict({"body": net(), "number": nn.Linear(4, 1), "kind": nn.Linear(4, 4)})
    model.register_parameter("spread", nn.Parameter(torch.tensor([0.5, -0.5])))

    def loss_of(batch: Any) -> torch.Tensor:
        body = model["body"](batch["x"])
        losses = torch.stack(
            [
                F.mse_loss(model["number"](body)[:, 0], batch["y"] - 1.5),
                F.cross_entropy(model["kind"](body), batch["y"]),
            ]
        )
        return (losses * (-model.spread).exp() + model.spread).sum()

    batches = [{"x": x, "y": torch.randint(0, 4, (ITEMS,))} for x in _uneven()]
    return world(model, batches, loss_of)


def gradnorm_weights() -> World:
    """GradNorm: weights of losses follow how fast each loss falls, from the first loss on."""
    model = nn.ModuleDict({"body": net(), "number": nn.Linear(4, 1), "kind": nn.Linear(4, 4)})
    weights = torch.ones(2, requires_grad=True)
    first: list[torch.Tensor] = []

    def loss_of(batch: Any) -> torch.Tensor:
        body = model["body"](batch["x"])
        number = F.mse_loss(model["number"](body)[:, 0], batch["x"][:, 0])
        losses = [number, F.cross_entropy(model["kind"](body), batch["y"])]
        values = torch.stack([loss.detach() for loss in losses])
        if not first:
            first.append(values)
        shared = model["body"][2].weight
        norms = torch.stack([torch.autograd.grad(loss, shared, retain_graph=True)[0].norm() for loss in losses])
        pace = values / first[0]
        target = (weights * norms).mean().detach() * (pace / pace.mean()).sqrt()
        (slope,) = torch.autograd.grad((weights * norms - target).abs().sum(), weights)
        with torch.no_grad():
            weights.sub_(slope, alpha=0.5).clamp_(min=0.1).mul_(2 / weights.sum())
        return sum((one * loss for one, loss in zip(weights.tolist(), losses, strict=True)), torch.zeros(()))

    return world(model, _labelled(), loss_of)


class Meter:
    """A mean of numbers that stand for several items each."""

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def update(self, value: float, items: int) -> None:
        self.sum += value * items
        self.count += items

    def taken(self) -> float:
        mean = self.sum / self.count
        self.sum, self.count = 0.0, 0
        return mean


def dynamic_weight_average_of_meters() -> World:
    """Weights of losses come from the ratio of the last epochs' means, which meters have collected."""
    model = nn.ModuleDict({"body": net(), "number": nn.Linear(4, 1), "kind": nn.Linear(4, 4)})
    meters, epochs = [Meter(), Meter()], []
    weights = [1.0, 1.0]

    def begin(number: int) -> None:
        if meters[0].count:
            epochs.append([meter.taken() for meter in meters])
        if len(epochs) > 1:
            ratio = torch.tensor([new / old for new, old in zip(epochs[-1], epochs[-2], strict=True)])
            weights[:] = (2 * (ratio * 3).softmax(0)).tolist()

    def loss_of(batch: Any) -> torch.Tensor:
        body = model["body"](batch["x"])
        number = F.mse_loss(model["number"](body)[:, 0], batch["x"][:, 0])
        losses = [number, F.cross_entropy(model["kind"](body), batch["y"])]
        for meter, loss in zip(meters, losses, strict=True):
            meter.update(loss.item(), len(batch["x"]))
        return weights[0] * losses[0] + weights[1] * losses[1]

    made = world(model, _labelled(), loss_of)
    made.begin = begin
    return made


def ring_of_many_losses() -> World:
    """Losses are divided by the mean of the last ones, of which a list keeps 6,000 numbers, over and over."""
    model = net()
    model.ring, model.place = [1.0 + n % 7 / 10 for n in range(6_000)], 3_000

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).pow(2).mean()
        usual = sum(model.ring[model.place - 3 : model.place]) / 3
        model.ring[model.place] = loss.item()
        model.place = (model.place + 1) % len(model.ring)
        return loss / usual

    return world(model, _uneven(), loss_of)


# ---- what forward remembers, of items, lengths and calls


def rotary_cache_that_grows() -> World:
    """Rotary embeddings: cosines and sines are buffers, made anew for the first sequence that is longer than they."""

    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.longest = 0
            self._fill(4)

        def _fill(self, length: int) -> None:
            self.longest = length
            angles = torch.arange(length)[:, None] / torch.tensor([1.0, 10.0, 100.0])
            self.register_buffer("cos", torch.cat([angles, angles], 1).cos(), persistent=False)
            self.register_buffer("sin", torch.cat([angles, angles], 1).sin(), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.size(1) > self.longest:
                self._fill(x.size(1))
            one, other = x.chunk(2, -1)
            return x * self.cos[: x.size(1)] + torch.cat([-other, one], -1) * self.sin[: x.size(1)]

    model = nn.ModuleDict({"rotary": Rotary(), "qkv": nn.Linear(WIDTH, 3 * WIDTH), "out": nn.Linear(WIDTH, 4)})

    def loss_of(batch: Any) -> torch.Tensor:
        query, key, value = model["qkv"](batch["x"]).chunk(3, -1)
        likeness = model["rotary"](query) @ model["rotary"](key).transpose(1, 2) / WIDTH**0.5
        return F.mse_loss(model["out"](likeness.softmax(-1) @ value), batch["y"])

    lengths = (4, 7, 5)
    batches = [{"x": torch.randn(ITEMS, length, WIDTH), "y": torch.randn(ITEMS, length, 4)} for length in lengths]
    for batch in batches:
        batch["x"][HALF:] *= 3
    return world(model, batches, loss_of)


def temporal_ensembling_by_item() -> World:
    """The target of each item is a running mean of what was said of it, in a row of its own."""
    model = net()
    model.register_buffer("said", torch.zeros(ITEMS, 4))

    def loss_of(batch: Any) -> torch.Tensor:
        out = model(batch["x"]).to(torch.get_default_dtype())
        likely = out.softmax(1)
        loss = F.cross_entropy(out, batch["y"]) + 8 * F.mse_loss(likely, model.said[batch["index"]])
        model.said[batch["index"]] = 0.6 * model.said[batch["index"]] + 0.4 * likely.detach()
        return loss

    return world(model, [{**batch, "index": torch.randperm(ITEMS)} for batch in _labelled()], loss_of)


def hidden_states_by_stream() -> World:
    """A recurrent net goes on where each stream has ended: a dict has the states."""
    model = nn.ModuleDict({"cell": nn.Linear(WIDTH + 5, 5), "out": nn.Linear(5, 4)})
    states: dict[int, torch.Tensor] = {}

    def loss_of(batch: Any) -> torch.Tensor:
        streams = batch["stream"].tolist()
        hidden = torch.stack([states.get(stream, torch.zeros(5)) for stream in streams])
        losses = []
        for time in range(3):
            hidden = torch.tanh(model["cell"](torch.cat([batch["x"][:, time], hidden], 1)))
            losses.append(F.cross_entropy(model["out"](hidden), batch["y"][:, time]))
        for stream, one in zip(streams, hidden.detach().to(torch.get_default_dtype()), strict=True):
            states[stream] = one
        return torch.stack(losses).mean()

    batches = [
        {"x": x, "y": torch.randint(0, 4, (ITEMS, 3)), "stream": torch.randperm(ITEMS) + 10}
        for x in _uneven(ITEMS, 3, WIDTH)
    ]
    return world(model, batches, loss_of)


class Reservoir:
    """A fair choice of all items that have passed, with what the model said of them."""

    def __init__(self, size: int) -> None:
        self.size, self.seen = size, 0
        self.rows: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(self, x: torch.Tensor, said: torch.Tensor) -> None:
        for row in zip(x, said, strict=True):
            if len(self.rows) < self.size:
                self.rows.append(row)
            elif (place := random.randint(0, self.seen)) < self.size:
                self.rows[place] = row
            self.seen += 1

    def drawn(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        one, other = zip(*random.sample(self.rows, count), strict=True)
        return torch.stack(one), torch.stack(other)


def rehearsal_reservoir() -> World:
    """Dark experience replay: new items, and old ones from a reservoir with the logits of then."""
    model, reservoir = net(), Reservoir(12)

    def loss_of(batch: Any) -> torch.Tensor:
        out = model(batch["x"])
        loss = F.cross_entropy(out, batch["y"])
        if reservoir.rows:
            x, said = reservoir.drawn(4)
            loss = loss + 4 * F.mse_loss(model(x * 1.5), said)
        reservoir.add(batch["x"], out.detach())
        return loss

    return world(model, _labelled(), loss_of)


def sharpness_by_power_iteration() -> World:
    """The loss's curvature along a vector that turns to the sharpest direction with each call."""
    model = net()
    model.register_buffer("along", F.normalize(torch.randn(5, WIDTH), dim=(0, 1)))

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        weight = model[0].weight
        loss = model(x).pow(2).mean()
        (slope,) = torch.autograd.grad(loss, weight, create_graph=True)
        (turned,) = torch.autograd.grad((slope * model.along).sum(), weight, create_graph=True)
        sharp = (turned * model.along).sum()
        model.along = F.normalize(turned.detach(), dim=(0, 1))
        return loss + sharp

    return world(model, _uneven(), loss_of)


# ---- schedules


class Reversal(torch.autograd.Function):
    """The identity, whose gradient is turned around."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strength: float) -> torch.Tensor:
        ctx.strength = strength
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.strength * gradient, None


def gradient_reversal_with_warm_start() -> World:
    """Domains are told apart, adversarially: a layer that counts its own calls turns the gradient around."""

    class WarmStart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            strength = float(2 * torch.sigmoid(torch.tensor(self.calls * 1.0)) - 1)
            self.calls += 1
            out: torch.Tensor = Reversal.apply(x, strength)
            return out

    model = nn.ModuleDict({"body": net(), "kind": nn.Linear(4, 4), "domain": nn.Linear(4, 1), "turn": WarmStart()})

    def loss_of(batch: Any) -> torch.Tensor:
        source, target = model["body"](batch["source"]), model["body"](batch["target"])
        domains = model["domain"](model["turn"](torch.cat([source, target])))[:, 0]
        truth = (torch.arange(len(domains)) < len(source)).to(domains.dtype)
        told_apart = F.binary_cross_entropy_with_logits(domains, truth)
        return F.cross_entropy(model["kind"](source), batch["y"]) + 3 * told_apart

    batches = [{"source": one["x"], "target": torch.randn(ITEMS, WIDTH) + 2, "y": one["y"]} for one in _labelled()]
    return world(model, batches, loss_of)


def mean_teacher_moved_between_steps() -> World:
    """The teacher follows between steps, and the weight of consistency is read from the trainer's step."""

    class Trainer:
        global_step = 0

        def consistency(self) -> float:
            return 5 * min(1.0, 0.3 + self.global_step / STEPS)

    model, trainer = nn.ModuleDict({"student": net()}), Trainer()
    model["teacher"] = frozen(copy.deepcopy(model["student"]))

    def begin(number: int) -> None:
        trainer.global_step = number
        with torch.no_grad():
            for theirs, ours in zip(model["teacher"].parameters(), model["student"].parameters(), strict=True):
                theirs.lerp_(ours, 0.3)

    def loss_of(batch: Any) -> torch.Tensor:
        out = model["student"](batch["x"] * 0.8)
        with torch.no_grad():
            target = model["teacher"](batch["x"]).softmax(-1)
        return F.cross_entropy(out, batch["y"]) + trainer.consistency() * F.mse_loss(out.softmax(-1), target)

    made = world(model, _labelled(), loss_of)
    made.begin = begin
    return made


def scheduled_sampling() -> World:
    """A decoder is fed with the truth, ever less often, or with what it said: Python draws which, for each time."""
    model = nn.ModuleDict({"cell": nn.Linear(WIDTH + 5, 5), "out": nn.Linear(5, WIDTH)})
    share = [1.0]

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        hidden, fed, losses = torch.zeros(len(x), 5), torch.zeros(len(x), WIDTH), []
        for time in range(x.size(1)):
            hidden = torch.tanh(model["cell"](torch.cat([fed, hidden], 1)))
            out = model["out"](hidden)
            losses.append(F.mse_loss(out, x[:, time]))
            fed = x[:, time] if random.random() < share[0] else out.detach()
        return torch.stack(losses).sum()

    made = world(model, _uneven(ITEMS, 6, WIDTH), loss_of)

    def begin(number: int) -> None:
        share[0] = 0.6 * 0.8**number

    made.begin = begin
    return made


def stochastic_depth_of_whole_blocks() -> World:
    """Residual blocks are left out for the whole batch, later ones more often."""
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)])
    model = nn.ModuleDict({"blocks": blocks, "out": nn.Linear(WIDTH, 4)})

    def loss_of(batch: Any) -> torch.Tensor:
        x = batch["x"]
        for number, block in enumerate(blocks, 1):
            left_out = 0.6 * number / len(blocks)
            if torch.rand(()) >= left_out:
                x = x + block(x) / (1 - left_out)
        return F.cross_entropy(model["out"](x), batch["y"])

    return world(model, _labelled(), loss_of)


def gumbel_temperature_lowered_in_forward() -> World:
    """Codes are drawn with a temperature that each call in training lowers."""

    class Coded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.codes, self.temperature = net(out=5), nn.Linear(5, WIDTH, bias=False), 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.temperature = max(0.3, self.temperature * 0.6)
            logits = self.encode(x).to(torch.get_default_dtype())
            return self.codes(F.gumbel_softmax(logits, self.temperature, hard=True))

    model = Coded()
    return world(model, _uneven(), lambda x: F.mse_loss(model(x), x))


# ---- meters, logs, configurations


class Logger:
    """Collects numbers by name; with every fifth, their mean goes to a history."""

    def __init__(self) -> None:
        self.open: dict[str, list[float]] = defaultdict(list)
        self.history: list[tuple[str, float]] = []

    def log(self, name: str, value: float) -> None:
        self.open[name].append(value)
        if len(self.open[name]) == 5:
            self.history.append((name, sum(self.open.pop(name)) / 5))


def logger_that_collects() -> World:
    """Nothing of the training reads what is collected."""
    model, logger = net(), Logger()

    def loss_of(batch: Any) -> torch.Tensor:
        out = model(batch["x"])
        terms = {"kind": F.cross_entropy(out, batch["y"]), "small": 0.1 * out.pow(2).mean()}
        for name, term in terms.items():
            logger.log(name, term.item())
        logger.log("right", (out.argmax(1) == batch["y"]).sum().item() / len(out))
        return terms["kind"] + terms["small"]

    return world(model, _labelled(), loss_of)


@dataclass
class Config:
    """What a model is made like, as a head for classification of transformers has it."""

    labels: int = 4
    problem_type: str | None = None


def problem_type_set_at_first_call() -> World:
    """Which loss is meant is guessed from the first labels, and written into the configuration."""

    class Classifier(nn.Module):
        def __init__(self, config: Config) -> None:
            super().__init__()
            self.config, self.net = config, net(out=config.labels)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            out = self.net(x)
            if self.config.problem_type is None:
                several = "multi_label" if labels.is_floating_point() else "single_label"
                self.config.problem_type = several if self.config.labels > 1 else "regression"
            if self.config.problem_type == "multi_label":
                return F.binary_cross_entropy_with_logits(out, labels)
            return F.mse_loss(out, labels) if self.config.labels == 1 else F.cross_entropy(out, labels)

    model = Classifier(Config())
    batches = [{"x": x, "labels": (torch.rand(ITEMS, 4) < 0.3) * 1.0} for x in _uneven()]
    return world(model, batches, lambda batch: model(**batch))
