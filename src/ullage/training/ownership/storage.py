"""Finds the addresses of the storages of tensors and modules.

The search does not run code of the user, such as properties and `__repr__` methods.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from ullage.training.ownership import attribute
from ullage.training.ownership.safe_inspection import class_dict, instance_dict, mro_of, slots

_IS_CUDA: Final = attribute.IS_CUDA.__get__  # read from torch.Tensor, because a subclass may override it


def addresses(tensors: Iterable[Any]) -> list[int]:
    """Return the device addresses of the storages of tensors, including tensors inside a DTensor or a sparse tensor.

    Tensors without a storage on a CUDA device are skipped.
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
    """Yield the tensors in nested lists, tuples and dicts, and in objects with an attribute `data`."""
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


def parts_of_tensor(tensor: Tensor) -> list[Tensor]:
    """Return the inner tensors of a tensor that has no storage itself, such as a sparse tensor."""
    kind = type(tensor)
    if kind is not Tensor and kind is not nn.Parameter and (parts := _parts(tensor)):
        return parts
    return _sparse_parts(tensor)


def _parts(tensor: Tensor) -> list[Tensor]:
    # a DTensor, for example, has its local tensor in a slot
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
    return torch._C._functorch.get_unwrapped(tensor) if is_of_torch_func(tensor) else None


def is_of_torch_func(tensor: Any) -> bool:
    """Return whether a tensor belongs to a transform of `torch.func`, such as `grad` or `vjp`."""
    return isinstance(tensor, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(tensor)
