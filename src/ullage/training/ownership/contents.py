"""Finds the tensors that optimizers, parameters and modules hold outside of PyTorch's own tables.

Libraries keep tensors in objects: GaLore's projector is an object in an optimizer's state, and bitsandbytes keeps the
scales of a weight in the attribute `quant_state` of the parameter. The search reads containers and attributes, and runs
no code of the user.
"""

import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from ullage.training.ownership import attribute
from ullage.training.ownership.reach import LEAVES
from ullage.training.ownership.safe_inspection import instance_dict, is_of, slots, table_of
from ullage.training.ownership.storage import addresses, parts_of_tensor

# Distributed Shampoo needs five levels: the dictionaries of a parameter and of a block, a preconditioner, its factors.
_LEVELS: Final = 8
_SEQUENCES: Final = (list, tuple, set, frozenset, deque)
# Objects whose contents have another owner.
_CLOSED: Final = (
    type, types.ModuleType, types.FunctionType, types.MethodType, weakref.ReferenceType,
    nn.Module, Optimizer, GradScaler,
)  # fmt: skip
_OWN_TABLES: Final = frozenset({"_parameters", "_buffers", "_modules"})
# The attributes of an optimizer that are not state.
_NOT_STATE: Final = frozenset({"state", "param_groups", "defaults"})


def tensors_inside(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested containers and in the attributes of objects.

    The search visits at most eight levels. It does not enter modules, optimizers, functions and classes.
    """
    seen: set[int] = set()
    level = [value]
    for _ in range(_LEVELS):
        following: list[Any] = []
        for one in level:
            kind = type(one)
            if issubclass(kind, Tensor):
                yield one
            elif kind not in LEAVES and id(one) not in seen:
                seen.add(id(one))
                following += _parts_of(one)
        level = following


def _parts_of(one: Any) -> Iterable[Any]:
    if is_of(one, (dict,)):
        return list(dict.values(one))
    for kind in _SEQUENCES:
        if is_of(one, (kind,)):
            return list(kind.__iter__(one))
    if is_of(one, _CLOSED):
        return []
    return [*(instance_dict(one) or {}).values(), *(value for _, value in slots(one))]


def optimizer_contents(optimizer: Optimizer) -> Iterator[tuple[str, Any, Tensor]]:
    """Yield the tensors that an optimizer holds in `state` and in its other attributes.

    An attribute may also hold parameters, gradients and tensors with a `grad_fn`. These are left out.

    Yields:
        The name of the optimizer's attribute, the key of the tensor in the parameter's state (None for other
        attributes), and the tensor.
    """
    for own in list(table_of(optimizer, "state").values()):
        for key, value in list(dict.items(own)) if is_of(own, (dict,)) else ((None, own),):
            for tensor in tensors_inside(value):
                yield "state", key, tensor
    held = [
        (name, tensor)
        for name, value in (instance_dict(optimizer) or {}).items()
        if name not in _NOT_STATE and type(value) not in LEAVES
        for tensor in tensors_inside(value)
        if attribute.IS_LEAF.__get__(tensor)
    ]
    if held:
        trained = [one for group in optimizer.param_groups for one in group["params"] if isinstance(one, Tensor)]
        taken = set(addresses([*trained, *(gradient for one in trained for gradient in gradients_of(one))]))
        yield from ((name, None, tensor) for name, tensor in held if taken.isdisjoint(addresses([tensor])))


def optimizer_tensors(optimizer: Optimizer) -> list[Tensor]:
    """Return the tensors that an optimizer holds, without its parameters and gradients."""
    return [tensor for _, _, tensor in optimizer_contents(optimizer)]


def gradients_of(parameter: Tensor) -> list[Tensor]:
    """Return a parameter's gradients: `grad`, and its attributes such as `main_grad` (Megatron) and `grad_sample`
    (Opacus).

    An attribute counts if its name contains "grad" and it is a tensor or a list of tensors.
    """
    # `functional_call` may pass a tensor with a `grad_fn` as a parameter. Reading its gradient prints a warning.
    has_gradient = attribute.IS_LEAF.__get__(parameter) or attribute.RETAINS_GRAD.__get__(parameter)
    gradient = attribute.GRAD.__get__(parameter) if has_gradient else None
    found = [gradient] if gradient is not None else []
    for name, value in (instance_dict(parameter) or {}).items():
        if "grad" in name and type(value) not in LEAVES:
            found += [one for one in (value if type(value) is list else [value]) if issubclass(type(one), Tensor)]
    return found


def parts_of_weights(module: nn.Module) -> Iterator[Tensor]:
    """Yield the scales, zero points and codes of a module's quantized weights, which are not in its own tables.

    They are attributes of the parameter (bitsandbytes) or of the module (HQQ). A weight is quantized if its parameter
    has an integer or 8-bit floating-point type, or an attribute that is an object with tensors.
    """
    weights = [one for one in table_of(module, "_parameters").values() if one is not None]
    inside = [one for weight in weights for one in _attached(weight)]
    yield from inside
    if inside or any(_is_packed(weight) for weight in weights):
        variables = instance_dict(module) or {}
        held = [value for name, value in variables.items() if name not in _OWN_TABLES]
        yield from (one for one in tensors_inside(held) if attribute.IS_LEAF.__get__(one))


def _attached(weight: Tensor) -> Iterator[Tensor]:
    variables = instance_dict(weight)
    if variables:
        other = () if _is_packed(weight) else (Tensor, dict, *_SEQUENCES)
        for name, value in variables.items():
            if "grad" not in name and not is_of(value, other):
                yield from tensors_inside(value)


def _is_packed(weight: Tensor) -> bool:
    kind = weight.dtype
    return kind is not torch.bool and (not (kind.is_floating_point or kind.is_complex) or kind.itemsize == 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedTensors:
    """The tensors that belong to a module and its submodules. Shared tensors are repeated."""

    parameters: list[nn.Parameter]
    buffers: list[Tensor]
    parts_of_weights: list[Tensor]
    """The scales, zero points and codes of quantized weights."""


def owned_by(root: nn.Module) -> OwnedTensors:
    """Return the tensors that belong to a module and its submodules."""
    owned = OwnedTensors(parameters=[], buffers=[], parts_of_weights=[])
    waiting, seen = [root], {id(root)}
    while waiting:
        module = waiting.pop()
        owned.parameters.extend(one for one in module._parameters.values() if one is not None)
        owned.buffers.extend(one for one in module._buffers.values() if one is not None)
        owned.parts_of_weights.extend(parts_of_weights(module))
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)
    return owned


def owned_bytes(optimizer: Optimizer) -> dict[str, int]:
    """Return the bytes of an optimizer's parameters, gradients and state on CUDA devices."""
    parameters = [one for group in optimizer.param_groups for one in group["params"] if isinstance(one, Tensor)]
    return {
        "parameters": _bytes_of(parameters),
        "gradients": _bytes_of(gradient for one in parameters for gradient in gradients_of(one)),
        "optimizer state": _bytes_of(optimizer_tensors(optimizer)),
    }


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    sizes: dict[int, int] = {}
    for tensor in tensors:
        for part in parts_of_tensor(tensor) or (tensor,):
            with suppress(RuntimeError, NotImplementedError, ValueError):
                if attribute.IS_CUDA.__get__(part) and (storage := Tensor.untyped_storage(part)).nbytes():
                    sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())
