"""Finds the storages of tensors and modules. Only their addresses are kept, so that no tensor is kept alive.

Only attributes that PyTorch's own classes define are read. The user's properties and `__repr__` never run.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor, nn

from ullage.training.ownership import attribute
from ullage.training.ownership.safe_inspection import class_dict, instance_dict, mro_of, slots

_IS_CUDA: Final = attribute.IS_CUDA.__get__  # read from torch.Tensor, because a subclass may override it


def addresses(tensors: Iterable[Any]) -> list[int]:
    """Return the device addresses of tensors' storages, including tensors inside wrappers such as DTensor and sparse
    layouts.

    Values without a storage on a CUDA device are skipped: fake, functional and lazy tensors, tensors on other devices,
    None.
    """
    found: list[int] = []
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            continue
        kind = type(tensor)
        if kind is not Tensor and kind is not nn.Parameter and (parts := _parts(tensor)):
            found += addresses(parts)
            continue
        try:
            if _IS_CUDA(tensor) and (storage := Tensor.untyped_storage(tensor)).nbytes():
                found.append(storage.data_ptr())
        except (RuntimeError, NotImplementedError, ValueError):
            found += addresses(_sparse_parts(tensor))
    return found


def tensors_in(value: Any, *, depth: int = 4) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples and dicts, and in objects that hold a batch in the attribute `data`."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item, depth=depth - 1)
    elif depth and isinstance(value, list | tuple | set):
        for item in value:
            yield from tensors_in(item, depth=depth - 1)
    elif depth and isinstance(getattr(value, "__dict__", {}).get("data"), dict):  # transformers' BatchEncoding
        yield from tensors_in(vars(value)["data"], depth=depth - 1)


def owned_by(module: nn.Module) -> tuple[list[nn.Parameter], list[Tensor]]:
    """Return the parameters and the buffers of a module and its submodules. Shared tensors are repeated.

    `Module.modules()` is not used, because it builds a name for each module, which would take most of the time.
    """
    parameters: list[nn.Parameter] = []
    buffers: list[Tensor] = []
    waiting, seen = [module], {id(module)}
    while waiting:
        child = waiting.pop()
        parameters += [parameter for parameter in child._parameters.values() if parameter is not None]
        buffers += [buffer for buffer in child._buffers.values() if buffer is not None]
        for grandchild in child._modules.values():
            if grandchild is not None and id(grandchild) not in seen:
                seen.add(id(grandchild))
                waiting.append(grandchild)
    return parameters, buffers


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    found: list[Tensor] = []
    for state in list(optimizer.state.values()):
        for value in state.values() if isinstance(state, dict) else (state,):
            if isinstance(value, Tensor):
                found.append(value)
            else:
                found += tensors_in(value)
    return found


def owned_bytes(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return the bytes on CUDA devices of an optimizer's parameters, of their gradients, and of the optimizer's
    state.
    """
    parameters = [one for group in optimizer.param_groups for one in group["params"] if isinstance(one, Tensor)]
    gradients = [one.grad for one in parameters if one.grad is not None]
    return {
        "parameters": _bytes_of(parameters),
        "gradients": _bytes_of(gradients),
        "optimizer state": _bytes_of(optimizer_tensors(optimizer)),
    }


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the total size of these tensors' storages on CUDA devices, in bytes. A shared storage counts once."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        for part in parts_of_tensor(tensor) or (tensor,):
            with suppress(RuntimeError, NotImplementedError, ValueError):
                if _IS_CUDA(part) and (storage := Tensor.untyped_storage(part)).nbytes():
                    sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def parts_of_tensor(tensor: Tensor) -> list[Tensor]:
    """Return the inner tensors of a tensor that has no storage itself, such as a sparse tensor or a wrapper."""
    kind = type(tensor)
    if kind is not Tensor and kind is not nn.Parameter and (parts := _parts(tensor)):
        return parts
    return _sparse_parts(tensor)


def _parts(tensor: Tensor) -> list[Tensor]:
    """Return the tensors among the attributes and slots of a wrapper tensor. A DTensor, for example, has its local
    tensor in a slot.
    """
    if not any("__tensor_flatten__" in class_dict(kind) for kind in mro_of(type(tensor))):
        return []
    values = [*(instance_dict(tensor) or {}).values(), *(value for _, value in slots(tensor))]
    return [value for value in values if issubclass(type(value), Tensor)]


def _sparse_parts(tensor: Tensor) -> list[Tensor]:
    if (inner := _unwrapped(tensor)) is not None:
        return [inner]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


def _unwrapped(tensor: Tensor) -> Tensor | None:
    """Return the tensor inside a tensor of torch.func, even if the torch.func transformation has ended."""
    functorch = torch._C._functorch
    if not functorch.is_functorch_wrapped_tensor(tensor):
        return None
    inner: Tensor = functorch.get_unwrapped(tensor)
    return inner
