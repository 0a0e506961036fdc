"""A small training that is the same each time, and everything that is left of it: what a fault must not change."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import nn
from torch.optim import Optimizer

import ullage
from tests.training.guard.faults import Faults

Left = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class World:
    """What a training is made of; `begin` is called with the number of each step before it."""

    model: nn.Module
    optimizers: Sequence[Optimizer]
    batches: Sequence[Any]
    loss_of: Callable[[Any], Any]
    scaler: torch.amp.GradScaler | None = None
    scheduler: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    updates: Callable[[int], bool] = lambda number: True
    begin: Callable[[int], None] = lambda number: None
    losses: list[Any] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


Build = Callable[[], World]


def guarded(build: Build, faults: Faults | None = None) -> World:
    """Train with a guard, and faults if there are any."""
    world = build()
    guard = guard_of(world)
    with faults or Faults():
        for number, batch in enumerate(world.batches):
            world.begin(number)
            world.losses.append(guard.step(batch, world.loss_of, update=world.updates(number)))
    return world


def guard_of(world: World) -> ullage.Guard:
    """A guard for a world."""
    return ullage.Guard(
        world.model,
        world.optimizers,
        scaler=world.scaler,
        scheduler=world.scheduler,
        log=world.said.append,
        **world.options,
    )


def bare(build: Build) -> World:
    """Train as a loop does that has no guard."""
    world = build()
    scaler = world.scaler or torch.amp.GradScaler("cpu", enabled=False)
    is_updated = False
    for number, batch in enumerate(world.batches):
        world.begin(number)
        if is_updated:
            for optimizer in world.optimizers:
                optimizer.zero_grad()
        loss = world.loss_of(batch)
        scaler.scale(loss).backward()
        world.losses.append(loss.detach())
        is_updated = world.updates(number)
        if is_updated:
            _update(world, scaler)
    return world


def _update(world: World, scaler: torch.amp.GradScaler) -> None:
    for optimizer in world.optimizers:
        scaler.unscale_(optimizer)
    if "clip_grad_norm" in world.options:
        nn.utils.clip_grad_norm_(world.model.parameters(), world.options["clip_grad_norm"])
    if "before_step" in world.options:
        world.options["before_step"]()
    for optimizer in world.optimizers:
        scaler.step(optimizer)
    scaler.update()
    if world.scheduler:
        world.scheduler.step()


def left_of(world: World) -> Left:
    """Everything that a training has changed: copies, by name."""
    named: Left = {f"parameter {name}": value for name, value in world.model.named_parameters()}
    named |= {f"gradient {name}": value.grad for name, value in world.model.named_parameters()}
    named |= {f"buffer {name}": value for name, value in world.model.named_buffers()}
    for number, optimizer in enumerate(world.optimizers):
        named[f"optimizer {number}"] = optimizer.state_dict()
    named["scaler"] = world.scaler.state_dict() if world.scaler else None
    named["scheduler"] = world.scheduler.state_dict() if world.scheduler else None
    named["losses"] = list(world.losses)
    named["random"] = [torch.get_rng_state(), hash(random.getstate()), numpy.random.get_state()[1].tobytes().hex()]
    plain = {name: _plain(value) for flat in named for name, value in _flat(flat, named[flat])}
    return {name: value for name, value in plain.items() if not name.endswith(" foreach")}  # how, and not what


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, element in value.items():
            yield from _flat(f"{name} {key}", element)
    elif isinstance(value, list | tuple):
        for number, element in enumerate(value):
            yield from _flat(f"{name} {number}", element)
    else:
        yield name, value


def _plain(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, int | float | str | None) else repr(type(value))
    dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
    return dense.clone()


def differences(one: Left, other: Left, *, within: float = 0.0) -> list[str]:
    """The names of what is not the same: bit for bit, or within a relative distance."""
    if one.keys() != other.keys():
        return [f"is there only once: {name}" for name in one.keys() ^ other.keys()]
    return [name for name in one if not _is_same(one[name], other[name], within)]


def _is_same(one: Any, other: Any, within: float) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return type(one) is type(other) and one == other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    one, other = one.cpu(), other.cpu()  # what an emulated card compares is not known there
    if within and one.is_floating_point():
        return torch.allclose(one, other, rtol=within, atol=within, equal_nan=True)
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))
