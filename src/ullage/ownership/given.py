"""What the objects that are passed to `ullage.release` consist of: modules, optimizers, loaders, tensors,
exceptions."""

import types
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ullage.ownership.path import class_dict, instance_dict, is_of

_NOT_ENTERED: Final = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.FrameType)
_HOOKS: Final = "_hooks"
"""Hooks of a module may belong to anybody: what they lead to is not the module's."""


@dataclass(slots=True)
class Given:
    """The parts of the objects that were passed, each once."""

    tensors: list[Tensor] = field(default_factory=list)
    modules: list[nn.Module] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    loaders: list[Any] = field(default_factory=list)
    graphs: list[Any] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)


def parts_of(objects: Iterable[Any]) -> Given:
    """Return what objects consist of: through containers and objects' own variables, not into classes and functions."""
    given = Given()
    seen: dict[int, Any] = {}
    waiting = deque(objects)
    while waiting:
        one = waiting.popleft()
        if id(one) in seen or is_of(one, _NOT_ENTERED):
            continue
        seen[id(one)] = one
        _sort(given, one)
        waiting += _inside(one)
    return given


def _sort(given: Given, one: Any) -> None:
    for kind, found in (
        (Tensor, given.tensors),
        (nn.Module, given.modules),
        (Optimizer, given.optimizers),
        (DataLoader, given.loaders),
        (torch.cuda.CUDAGraph, given.graphs),
        (BaseException, given.errors),
    ):
        if is_of(one, (kind,)):
            found.append(one)


def _inside(one: Any) -> list[Any]:
    """Return what an object holds that is its own."""
    if is_of(one, (str, bytes, int, float)):
        return []
    if is_of(one, (types.MethodType,)):
        return [one.__self__]
    inside = _elements(one)
    if is_of(one, (Optimizer,)):  # its parameters are a model's, and only that gives them up
        return inside + list((instance_dict(one) or {}).get("state", {}).values())
    if is_of(one, (nn.Module,)):
        variables = instance_dict(one) or {}
        return inside + [value for name, value in variables.items() if not name.endswith(_HOOKS)]
    return inside + list((instance_dict(one) or {}).values()) + _slots(one)


def _elements(one: Any) -> list[Any]:
    if is_of(one, (dict,)):
        return list(dict.values(one))
    for kind in (list, tuple, set, frozenset, deque):
        if is_of(one, (kind,)):
            return list(kind.__iter__(one))
    return []


def _slots(one: Any) -> list[Any]:
    found = []
    for kind in type(one).__mro__:
        for slot in class_dict(kind).values():
            if type(slot) is types.MemberDescriptorType:
                try:
                    found.append(slot.__get__(one))
                except AttributeError:
                    continue  # not assigned
    return found
