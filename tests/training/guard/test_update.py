"""One error of memory at every operation of an optimizer's steps in turn, for every optimizer: none is half applied."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.shared.inside import INSIDE, SLOW, inside

if INSIDE:
    import torch
    from torch import nn

    import ullage
    from tests.training.guard.faults import Faults
    from tests.training.guard.world import World, bare, differences, guard_of, guarded, left_of

# name: (class, options). Those that need a closure cannot be guarded.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {}),
    "SGD momentum": ("SGD", {"momentum": 0.9, "weight_decay": 0.1, "dampening": 0.2}),
    "SGD nesterov": ("SGD", {"momentum": 0.9, "nesterov": True, "maximize": True}),
    "Adam": ("Adam", {"weight_decay": 0.1}),
    "Adam amsgrad": ("Adam", {"amsgrad": True, "maximize": True}),
    "AdamW": ("AdamW", {"amsgrad": True}),
    "Adamax": ("Adamax", {"weight_decay": 0.1}),
    "NAdam": ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "RAdam": ("RAdam", {"weight_decay": 0.1}),
    "RMSprop": ("RMSprop", {}),
    "RMSprop centered": ("RMSprop", {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
    "Adagrad": ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1}),
    "Adadelta": ("Adadelta", {"weight_decay": 0.1}),
    "Rprop": ("Rprop", {}),
    "ASGD": ("ASGD", {"weight_decay": 0.1, "t0": 1}),
}
FUSED = ("SGD", "SGD momentum", "SGD nesterov", "Adam", "Adam amsgrad", "AdamW", "Adagrad")
ONE_BY_ONE = ("Adafactor", "SparseAdam", "Muon", "Complex", "OfOnesOwn", "Rebinding", "TensorLr")
POINTS = 1_000_000 if SLOW else 10


def _variants() -> Iterator[tuple[str, str]]:
    for name in OPTIMIZERS:
        yield name, "foreach"
        yield name, "one by one"
        if name in FUSED:
            yield name, "fused"
    for name in ONE_BY_ONE:
        yield name, "as it is"


VARIANTS = tuple(_variants())

if INSIDE:

    class _Parameters(nn.Module):
        """Parameters of several types, so that a step on lists goes group by group."""

        def __init__(self, *dtypes: torch.dtype, shape: tuple[int, ...] = (3, 2)) -> None:
            super().__init__()
            self.values = nn.ParameterList(
                nn.Parameter(torch.randn(*size, dtype=dtype)) for dtype in dtypes for size in (shape, shape[::-1])
            )

        def forward(self, scale: torch.Tensor) -> torch.Tensor:
            values = [value * value.abs() if value.is_complex() else value**3 for value in self.values]
            return torch.stack([value.abs().double().sum() for value in values]).sum() * scale.sum()

    class _OfOnesOwn(torch.optim.Optimizer):
        """Reads what it has written and writes what it has read, in no order that could be begun again."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    state = self.state[parameter]
                    if not state:
                        state["before"] = parameter.clone()
                        state["norm"] = torch.zeros(1)
                    before = parameter.clone()
                    parameter.sub_(parameter.grad * group["lr"])
                    state["norm"] += parameter.norm().float()
                    parameter.lerp_(state["before"], 0.1)
                    parameter[0] = before[0] * 0.5 + parameter[0]
                    parameter.data.mul_(1 / (1 + state["norm"][0]))
                    state["before"].copy_(before)
                    torch.add(parameter, before, alpha=0.01, out=parameter)

    class _Rebinding(torch.optim.Optimizer):
        """Puts a new tensor in the place of every parameter's, and keeps state that is no tensor."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self) -> None:
            for group in self.param_groups:
                group["lr"] *= 0.9
                for parameter in group["params"]:
                    parameter.data = parameter.data - group["lr"] * parameter.grad
                    self.state[parameter]["steps"] = self.state[parameter].get("steps", 0) + 1


def _world(name: str, way: str) -> "World":
    torch.manual_seed(11)
    dtypes = (torch.float32, torch.float64) if way == "fused" else (torch.float32, torch.float64, torch.bfloat16)
    model: nn.Module = _Parameters(*dtypes)
    if name == "Complex":
        model = _Parameters(torch.complex64, torch.float32)
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    elif name == "TensorLr":
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1), foreach=False)
    elif name == "OfOnesOwn":
        optimizer = _OfOnesOwn(model.parameters())
    elif name == "Rebinding":
        optimizer = _Rebinding(model.parameters())
    elif name == "SparseAdam":
        model = nn.Sequential(nn.Embedding(4, 3, sparse=True), nn.Flatten(0))
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    elif name in ("Adafactor", "Muon"):
        optimizer = getattr(torch.optim, name)(model.parameters())
    else:
        kind, options = OPTIMIZERS[name]
        how = {"foreach": way == "foreach"} if way != "fused" else {"fused": True}
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options, **how)
    batches: list[Any] = [torch.randn(2) for _ in range(3)]
    if name == "SparseAdam":
        batches = [torch.randint(4, (2, 2)) for _ in range(3)]
    return World(
        model=model, optimizers=[optimizer], batches=batches, loss_of=lambda batch: (model(batch) ** 2).sum() ** 0.5
    )


def _train(name: str, way: str, faults: "Faults") -> tuple["World", list[range]]:
    """Train, and tell which operations are those of the updates."""
    world = _world(name, way)
    guard = guard_of(world)
    stages = []
    with faults:
        for batch in world.batches:
            world.losses.append(guard.step(batch, world.loss_of, update=False))
            begin = faults.count
            guard.update()
            stages.append(range(begin, faults.count))
    return world, stages


@pytest.mark.parametrize(("name", "way"), VARIANTS)
@inside
def test_a_step_that_runs_out_anywhere_is_applied_once(name: str, way: str) -> str:
    """Parameters and the optimizer's state are the same bits, wherever in the first, second or third update."""
    if not hasattr(torch.optim, "Muon") and name == "Muon":
        return "this torch has no Muon"
    counting = Faults()
    reference, stages = _train(name, way, counting)
    expected = left_of(reference)
    assert differences(left_of(bare(lambda: _world(name, way))), expected) == []
    wrong = []
    points = [point for stage in stages for point in stage[:: -(-len(stage) * len(stages) // POINTS)]]
    for point in points:
        faults = Faults({point})
        try:
            world, _ = _train(name, way, faults)
            changed = differences(expected, left_of(world))
        except Exception as error:
            changed = [repr(error)[:300]]
        if changed or faults.raised != 1:
            wrong.append((point, str(counting.operations[point]), changed[:3], world.said))
    assert not wrong, f"{len(wrong)} of {len(points)}: {wrong[:4]}"
    return f"{len(points)} points of {sum(map(len, stages))}"


@inside
def test_every_optimizer_is_tried() -> None:
    """No optimizer of PyTorch is left out but those that need a closure."""
    tried = {kind for kind, _ in OPTIMIZERS.values()} | set(ONE_BY_ONE)
    there = {
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    assert there - tried == {"Optimizer", "LBFGS"}


@inside
def test_hooks_of_a_step_are_called_once() -> None:
    """A user's hooks see one call a step, tried out or gone on with, and schedulers count right."""

    def build() -> World:
        world = _world("Adam", "foreach")
        world.optimizers[0].register_step_pre_hook(lambda *_: called.append("before"))
        world.optimizers[0].register_step_post_hook(lambda *_: called.append("after"))
        world.scheduler = torch.optim.lr_scheduler.StepLR(world.optimizers[0], 1, 0.5)
        return world

    called: list[str] = []
    counting = Faults()
    guarded(build, counting)
    for point in range(0, counting.count, 3 if SLOW else 23):
        called.clear()
        world = guarded(build, Faults({point}))
        assert called == ["before", "after"] * 3, (point, called)
        assert world.scheduler.last_epoch == 3


@inside
def test_the_norm_before_clipping_can_be_read() -> None:
    """It is that of all gradients together, as `clip_grad_norm_` returns it; without clipping there is none."""
    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.randn(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(batch).square().mean().backward()
    expected = nn.utils.get_total_norm([one.grad for one in model.parameters()])
    optimizer.zero_grad()
    plain, clipping = ullage.Guard(model, optimizer), ullage.Guard(model, optimizer, clip_grad_norm=expected.item() / 2)
    assert clipping.total_norm is None
    clipping.step(batch, lambda part: model(part).square().mean())
    torch.testing.assert_close(clipping.total_norm, expected)
    plain.step(batch, lambda part: model(part).square().mean())
    assert plain.total_norm is None
