"""Trainings with and without `ullage.Guard`, what they leave, and in a word how two of them compare."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

import ullage
from tests.training.guard.world import Left, World, bare, guard_of, left_of

from .cases import EQUAL, PARTS, REFUSED
from .trainings import PlacedFaults, enter, made

Build = Callable[[str], World]


@dataclass(slots=True, kw_only=True)
class Run:
    """One training, its gradients of each step (copies on the host), and what a guard has done."""

    world: World
    device: str
    computes: bool
    """False on an emulated GPU, where values say nothing: they are not read."""
    gradients: Left = field(default_factory=dict)
    before: Left = field(default_factory=dict)
    """Parameters and buffers before the step that was refused."""
    events: list[Any] = field(default_factory=list)
    refusal: str = ""

    def left(self) -> Left:
        """Return all that the training has left, on the host; it takes memory of the GPU for a moment."""
        if not self.computes:
            return {}
        left = left_of(self.world)
        if self.device == "cuda":
            left["random of the GPU"] = torch.cuda.get_rng_state()
        return {name: _on_host(value) for name, value in left.items() if "gradient" not in name} | self.gradients

    @property
    def is_in_parts(self) -> bool:
        """Whether a step was taken in parts."""
        return any(event.parts > 1 for event in self.events)


def train_bare(build: Build, device: str, *, computes: bool) -> Run:
    """Train as a loop does that has no guard."""
    run = Run(world=made(build, device), device=device, computes=computes)
    if run.world.options.get("batchnorm") == "freeze":
        for module in run.world.model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
    _watch_gradients(run)
    bare(lambda: run.world)
    _take_gradients(run, len(run.world.batches))
    return run


def train_guarded(
    build: Build, device: str, faults: PlacedFaults | None = None, *, computes: bool, **options: Any
) -> Run:
    """Train with a guard that has these options, and with errors if there are any."""
    run = Run(world=made(build, device), device=device, computes=computes)
    world = run.world
    inner = world.loss_of

    def loss_of(batch: Any) -> Any:
        enter("forward")
        return inner(batch)

    world.options |= {"backward": _backward, **options}
    _watch_gradients(run)
    guard = guard_of(world)
    faults = faults or PlacedFaults()
    try:
        with faults:
            for number, batch in enumerate(world.batches):
                faults.step = number
                world.begin(number)
                world.losses.append(guard.step(batch, loss_of, update=world.updates(number)))
                faults.enter("outside")
        _take_gradients(run, len(world.batches))
    except (torch.OutOfMemoryError, ullage.UsageError) as error:
        run.refusal = " ".join([str(error), *getattr(error, "__notes__", ())])
    run.events = list(guard.events)
    return run


def outcome(run: Run, reference: Left, *, tolerance: float, gradients_only: bool) -> tuple[str, dict[str, float]]:
    """Say in a word how a training compares with the undisturbed one, and how far apart they are at most, by group.

    With `gradients_only` the gradients of the first step that was taken in parts are compared, and nothing that comes
    after it: what an optimizer such as Adam makes of a number that is nothing but rounding is not bounded by rounding.
    """
    if run.refusal:
        changed = [
            name for name, before in run.before.items() if not torch.equal(before, _named(run.world)[name].cpu())
        ]
        return (f"refused, and changed: {', '.join(changed[:3])}" if changed else REFUSED), {}
    left = run.left()
    if left.keys() != reference.keys():
        return f"different: is there only once: {sorted(left.keys() ^ reference.keys())[:3]}", {}
    if not run.is_in_parts:
        unequal = [name for name in left if not _is_equal(left[name], reference[name])]
        word = f"different: {len(unequal)} of {len(left)}, {', '.join(unequal[:3])}" if unequal else EQUAL
        return word, _distances(left, reference, unequal)
    first = min(event.step for event in run.events if event.parts > 1)
    compared = [name for name in left if not gradients_only or name.startswith(f"gradient {first} ")]
    distances = _distances(left, reference, compared)
    far = {name: distance for name, distance in distances.items() if not distance <= tolerance}
    return (f"in parts, different: {', '.join(far)}" if far else PARTS), distances


def free(*runs: Run) -> None:
    """Give back what trainings hold, and what PyTorch caches."""
    for run in runs:
        del run.world
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _backward(loss: torch.Tensor) -> None:
    enter("backward")
    loss.backward()
    enter("update")


def _watch_gradients(run: Run) -> None:
    """Take each step's gradients before the next step drops them, and parameters before each step."""
    begin = run.world.begin

    def begun(number: int) -> None:
        if number:
            _take_gradients(run, number)
        if run.computes:
            run.before = {name: _on_host(value) for name, value in _named(run.world).items()}
        begin(number)

    run.world.begin = begun


def _take_gradients(run: Run, step: int) -> None:
    if run.computes:
        named = run.world.model.named_parameters()
        run.gradients |= {f"gradient {step} {name}": _on_host(parameter.grad) for name, parameter in named}


def _named(world: World) -> Left:
    return {**dict(world.model.named_parameters()), **dict(world.model.named_buffers())}


def _on_host(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value


def _is_equal(one: Any, other: Any) -> bool:
    """Compare bits, so that a NaN is equal to itself and zero is not equal to minus zero."""
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return type(one) is type(other) and bool(one == other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


def _distances(one: Left, other: Left, names: list[str]) -> dict[str, float]:
    """Return the largest relative distance of two tensors by group, each measured by its norm (Frobenius)."""
    found: dict[str, float] = {}
    for name in names:
        group = name.split()[0]
        found[group] = max(found.get(group, 0.0), _distance(one[name], other[name]))
    return found


def _distance(one: Any, other: Any) -> float:
    if not (isinstance(other, torch.Tensor) and other.is_floating_point()):
        return 0.0 if _is_equal(one, other) else float("inf")
    gap = torch.linalg.vector_norm(one.double() - other.double())
    size = torch.linalg.vector_norm(other.double())
    if not bool(gap.isfinite()):
        return float("inf")
    return float(gap / size) if size else float("inf" if gap else 0.0)
