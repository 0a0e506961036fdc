"""The storages behind tensors and modules: addresses only, so that nothing is kept alive.

It looks at attributes that PyTorch's own classes define and never runs a user's property or `__repr__`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn


def storage_address(tensor: Tensor) -> int | None:
    """Return the device address of a tensor's storage; None where it has none on a CUDA device."""
    try:
        if not tensor.is_cuda:
            return None
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError, ValueError):  # fake, functional, sparse or lazy: no storage
        return None


def addresses(tensors: Iterable[Any]) -> Iterator[int]:
    """Yield the storage addresses of tensors, looking inside wrappers such as DTensor and sparse layouts."""
    for tensor in tensors:
        kind = type(tensor)
        if (kind is Tensor or kind is nn.Parameter) and tensor.is_cuda and tensor.layout is torch.strided:
            if (address := storage_address(tensor)) is not None:  # nearly always
                yield address
            continue
        if not isinstance(tensor, Tensor):
            continue
        if kind is not Tensor and kind is not nn.Parameter and (parts := _parts(tensor)):
            yield from addresses(parts)
        elif tensor.layout is not torch.strided:
            yield from addresses(_sparse_parts(tensor))
        elif (address := storage_address(tensor)) is not None:
            yield address


def tensors_in(value: Any, *, depth: int = 4) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples and dicts (and batch objects that hold them in `data`)."""
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


def parameters_of(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of a module and its children, shared ones once for each place."""
    for child in module.modules():
        yield from (parameter for parameter in child._parameters.values() if parameter is not None)


def buffers_of(module: nn.Module) -> Iterator[Tensor]:
    """Yield the buffers of a module and its children."""
    for child in module.modules():
        yield from (buffer for buffer in child._buffers.values() if buffer is not None)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield the tensors of an optimizer's state."""
    for state in list(optimizer.state.values()):
        yield from tensors_in(state)


def _parts(tensor: Tensor) -> list[Tensor]:
    local = getattr(tensor, "_local_tensor", None)
    if isinstance(local, Tensor):
        return [local]
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is None:
        return []
    names, _ = flatten(tensor)
    return [getattr(tensor, name) for name in names]


def _sparse_parts(tensor: Tensor) -> list[Tensor]:
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []
