"""Finds the tensors, modules, optimizers and other parts of the objects that are passed to `ullage.release`.

For a module, only its submodules, parameters, buffers and tensor attributes are released, because other attributes may
refer to another model. The parameters of an optimizer are not released, because they belong to a model.
"""

import gc
import types
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from ullage.training.ownership import attribute
from ullage.training.ownership.graph import tangent_of
from ullage.training.ownership.held_in_cpp import CAPSULE, SCRIPTS, tensors_of_script
from ullage.training.ownership.root import is_of_user_class, module_dicts
from ullage.training.ownership.safe_inspection import class_dict, closure_of, held_by, instance_dict, is_of
from ullage.training.ownership.search import is_function
from ullage.training.ownership.storage import parts_of_tensor

_NOT_ENTERED: Final = (type, types.ModuleType, types.FrameType, types.CodeType, str, bytes, int, float)
_CONTAINERS: Final = (list, tuple, set, frozenset, deque, dict)
_HOOKS: Final = "_hooks"


@dataclass(slots=True)
class ReleasedParts:
    """The parts of the objects that the user passed to `ullage.release`, such as tensors and modules."""

    tensors: list[Tensor] = field(default_factory=list)
    storages: list[torch.UntypedStorage] = field(default_factory=list)
    functions: list[Any] = field(default_factory=list)
    """Functions of autograd graphs."""
    modules: list[nn.Module] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    loaders: list[Any] = field(default_factory=list)
    graphs: list[Any] = field(default_factory=list)
    """CUDA graphs."""
    capsules: list[Any] = field(default_factory=list)
    """DLPack capsules."""
    failures: list[Any] = field(default_factory=list)
    """Exceptions, tracebacks and stack frames."""


def parts_of(objects: Iterable[Any]) -> ReleasedParts:
    """Collect the tensors, modules and similar objects inside the objects that were passed to `ullage.release`."""
    given = ReleasedParts()
    closed = module_dicts()
    seen: dict[int, Any] = {}
    waiting = deque(objects)
    for one in tuple(
        waiting
    ):  # classes and frames count only if they were passed directly: any object leads to its class
        if is_of(one, (types.FrameType,)):
            given.failures.append(one)
        elif is_of(one, (type,)) and is_of_user_class(one):
            waiting += class_dict(one).values()
    while waiting:
        one = waiting.popleft()
        if id(one) in seen or id(one) in closed or is_of(one, _NOT_ENTERED):
            continue
        seen[id(one)] = one
        _sort(given, one)
        waiting += _inside(one)
    return given


def _sort(given: ReleasedParts, one: Any) -> None:
    for kind, found in (
        (Tensor, given.tensors),
        (torch.UntypedStorage, given.storages),
        (nn.Module, given.modules),
        (Optimizer, given.optimizers),
        (DataLoader, given.loaders),
        (torch.cuda.CUDAGraph, given.graphs),
        (CAPSULE, given.capsules),
        (BaseException, given.failures),
        (types.TracebackType, given.failures),
    ):
        if is_of(one, (kind,)):
            found.append(one)
    if is_function(type(one)):
        given.functions.append(one)


def _inside(one: Any) -> Iterable[Any]:
    variables = instance_dict(one) or {}
    if is_of(one, (Tensor,)):
        base = attribute.BASE.__get__(one)
        own = [*parts_of_tensor(one), *variables.values(), *_of_hooks(one._backward_hooks), tangent_of(one)]
        return own if base is None else [base, *own]
    if is_of(one, (Optimizer,)):
        groups = [group for group in variables.get("param_groups", ()) if is_of(group, (dict,))]
        settings = [value for group in groups for name, value in dict.items(group) if name != "params"]
        wrapped = [
            value for value in variables.values() if is_of(value, (Optimizer,))
        ]  # wrapped optimizers of Accelerate and ZeRO
        return [*variables.get("state", {}).values(), *filter(_is_of_tensors, settings), *wrapped]
    if is_of(one, (DataLoader,)):
        return [variables.get("dataset"), variables.get("_iterator"), *_of_samplers(variables)]
    if is_of(one, (LRScheduler,)):
        return [variables.get("optimizer")]
    if is_of(one, (nn.Module,)):
        return _inside_module(one, variables)
    if is_of(one, SCRIPTS):
        return [*variables.values(), *(tensor for _, _, tensor in tensors_of_script(one))]
    if is_of(one, (types.FunctionType,)):
        return [
            *dict(closure_of(one)).values(),
            *(one.__defaults__ or ()),
            *(one.__kwdefaults__ or {}).values(),
            one.__dict__,
        ]
    return [*held_by(one), *variables.values()]


def _inside_module(module: nn.Module, variables: dict[str, Any]) -> list[Any]:
    tables = [variables.get(name) for name in ("_modules", "_parameters", "_buffers")]
    if is_of(module, (torch.jit.ScriptModule,)):  # its tensors are held in C++
        tables += [variables.get("_c"), variables.get("_actual_script_module")]
    hooks = [found for name, value in variables.items() if name.endswith(_HOOKS) for found in _of_hooks(value)]
    return [*tables, *hooks, *filter(_is_of_tensors, variables.values())]


def _of_samplers(variables: dict[str, Any]) -> list[Any]:
    samplers = [instance_dict(variables.get(name)) or {} for name in ("sampler", "batch_sampler")]
    samplers += [instance_dict(sampler.get("sampler")) or {} for sampler in samplers]
    return [value for sampler in samplers for value in filter(_is_of_tensors, sampler.values())]


def _of_hooks(hooks: Any) -> list[Any]:
    if not is_of(hooks, (dict,)):
        return []
    kept = []
    for hook in dict.values(hooks):
        function = hook.__wrapped__ if is_of(hook, (types.FunctionType,)) and "__wrapped__" in hook.__dict__ else hook
        if is_of(function, (types.FunctionType,)):
            kept += [*dict(closure_of(function)).values(), *(function.__defaults__ or ())]
    return [one for one in kept if _is_of_tensors(one) and not (is_of(one, (Tensor,)) and _is_trained(one))]


def _is_of_tensors(one: Any, within: tuple[int, ...] = ()) -> bool:
    if is_of(one, (Tensor,)):
        return not within or not _is_trained(one)
    if not is_of(one, _CONTAINERS) or id(one) in within:
        return False
    elements = list(dict.values(one)) if is_of(one, (dict,)) else gc.get_referents(one)
    return bool(elements) and all(
        is_of(element, (str, int, float)) or _is_of_tensors(element, (*within, id(one))) for element in elements
    )


def _is_trained(tensor: Tensor) -> bool:
    return is_of(tensor, (nn.Parameter,)) or (tensor.is_leaf and tensor.requires_grad)
