"""A batch of any form: how many items it has, what its shape is, and the same batch in parts.

A batch is a tensor, or any nesting of dicts, lists, tuples, named tuples, dataclasses and mappings of them. Nothing is
copied: a part is views of the batch's tensors. A batch that has anything else in it is taken whole or not at all
(`why_whole`), because what its items are is not known.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any, Final

import torch
from torch import nn

Shape = tuple[Any, ...]


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch, in order."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors_of(value)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_of(value)
    elif is_dataclass(batch) and not isinstance(batch, type):
        for field in fields(batch):
            yield from tensors_of(getattr(batch, field.name))


def items_of(batch: Any, dim: int = 0) -> int | None:
    """Return how many items a batch has along `dim`, from its first tensor; None if no tensor has that dimension."""
    return next((tensor.size(dim) for tensor in tensors_of(batch) if tensor.dim() > dim), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The shapes and sizes of a batch, known before it is used."""

    shape: Shape
    """The shapes and types of its tensors: what its memory depends on."""
    items: int | None
    """The number of items; None if no tensor has the dimension along which items lie."""
    length: int
    """The number of elements of one item in the batch's largest tensor: tokens of a sequence, pixels of a picture."""
    uneven: int | None
    """The size along the batch dimension of a tensor that does not have one row per item; None if all have."""
    odd: str | None
    """A tensor that has no rows to be cut along, in words; None if all have."""


def form_of(batch: Any, dim: int = 0) -> Form:
    """Return the form of a batch whose items lie along `dim`."""
    tensors = all_of(batch)
    odd = next((text for text in map(_odd, tensors) if text is not None), None)
    if odd is not None:
        return Form(shape=shape_of(tensors), items=None, uneven=None, odd=odd, length=0)
    lying = [tensor for tensor in tensors if tensor.dim() > dim]
    sizes = [tensor.size(dim) for tensor in lying]
    return Form(
        shape=shape_of(tensors),
        items=sizes[0] if sizes else None,
        uneven=next((size for size in sizes if size not in (1, sizes[0])), None),
        odd=None,
        length=max([tensor.numel() // max(tensor.size(dim), 1) for tensor in lying], default=0),
    )


def all_of(batch: Any) -> Sequence[torch.Tensor]:
    """Return the tensors of a batch, in order. The common case, one plain container, is fast."""
    kind = type(batch)
    elements = batch if kind in (tuple, list) else tuple(batch.values()) if kind is dict else (batch,)
    for element in elements:
        if type(element) is not torch.Tensor:
            return list(tensors_of(batch))
    return elements


def is_plain(batch: Any) -> bool:
    """Tell whether a batch is a tensor, or one container of nothing but tensors."""
    kind = type(batch)
    if kind is torch.Tensor:
        return True
    elements = batch if kind in (tuple, list) else batch.values() if kind is dict else (None,)
    return all(type(element) is torch.Tensor for element in elements)


def shape_of(tensors: Sequence[torch.Tensor]) -> Shape:
    """Return the shapes and types of tensors."""
    try:
        return tuple([(tensor.shape, tensor.dtype, tensor.layout) for tensor in tensors])
    except RuntimeError:  # a nested tensor has no shape
        return tuple([_shape_of_odd(tensor) for tensor in tensors])


def _shape_of_odd(tensor: torch.Tensor) -> Any:
    if not tensor.is_nested or tensor.layout is not torch.strided:
        return tensor.shape, tensor.dtype, tensor.layout
    return tuple(tuple(one.shape) for one in tensor.unbind()), tensor.dtype


def _odd(tensor: torch.Tensor) -> str | None:
    """Say of a tensor that it is of a kind that is not cut; None for an ordinary one."""
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout}"
    return None if type(tensor) in _PLAIN else f"a tensor of type {type(tensor).__name__}"


_PLAIN: Final = (torch.Tensor, nn.Parameter)
_ATOMS: Final = (
    *(type(None), bool, int, float, complex, str, bytes, Enum, range, slice),
    *(torch.dtype, torch.device, torch.Size),
)


def why_whole(batch: Any, *, is_vouched: bool = False) -> str | None:
    """Say what is in a batch that is not known to be rows of independent items; None if everything is.

    Where the user vouches for it, an object that is no container may stand beside the tensors.
    """
    if isinstance(batch, torch.Tensor):
        return _odd(batch)
    if isinstance(batch, _ATOMS) or (type(batch).__module__ == "numpy" and not hasattr(batch, "__len__")):
        return None
    elements = _elements_of(batch)
    if elements is None:
        if is_vouched and not isinstance(batch, Sequence | Mapping) and type(batch).__module__ != "numpy":
            return None
        article = "an array of numpy" if type(batch).__module__ == "numpy" else f"a {type(batch).__qualname__}"
        return f"{article}, of which it is not known what its items are"
    reasons = (why_whole(element, is_vouched=is_vouched) for element in elements)
    return next((why for why in reasons if why is not None), None)


def _elements_of(value: Any) -> Sequence[Any] | None:
    """Return the elements of a container that can be taken apart and put together again; None for anything else."""
    kind = type(value)
    if kind in (list, tuple) or (isinstance(value, tuple) and _is_named(kind)):
        return tuple(value)
    if _is_mapping(value):
        return tuple(value.values())
    if _is_record(value):
        return [getattr(value, field.name) for field in fields(value)]
    return None


def _is_named(kind: type) -> bool:
    """Tell whether a type is a named tuple and nothing more; one derived from it, such as `PackedSequence`, means
    something by its elements."""
    return hasattr(kind, "_fields") and kind.__bases__ == (tuple,)


def _is_mapping(value: Any) -> bool:
    """Tell whether the constructor of a value's type is that of a dictionary; or it keeps its elements in one."""
    if isinstance(value, dict):
        return type(value).__init__ in (dict.__init__, OrderedDict.__init__) or _is_record(value)
    return isinstance(value, Mapping) and isinstance(getattr(value, "data", None), dict)


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return PyTorch's count of the writes to each tensor; -1 for those made for inference, which are not counted."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [-1 if tensor.is_inference() else tensor._version for tensor in tensors]


def repacked(batch: Any) -> Any:
    """Return the same tensors in containers of their own, which a function may then change."""
    kind = type(batch)
    if kind is dict:
        return {key: value if type(value) is torch.Tensor else repacked(value) for key, value in batch.items()}
    if kind is tuple or kind is list:
        elements = [value if type(value) is torch.Tensor else repacked(value) for value in batch]
        return elements if kind is list else tuple(elements)
    return _mapped(batch, repacked)


def even_parts(items: int, at_least: int) -> int:
    """Return a number of parts, `at_least` or half as many more, that divides the items if one does.

    Parts of one size are one shape to compile for, and one for the allocator.
    """
    at_least = min(at_least, items)
    return next((parts for parts in range(at_least, min(items, at_least * 3 // 2) + 1) if items % parts == 0), at_least)


def narrow(batch: Any, dim: int, start: int, length: int) -> Any:
    """Return the items of a batch from `start` on."""
    items = items_of(batch, dim)

    def cut(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.narrow(dim, start, length) if value.dim() > dim and value.size(dim) == items else value
        if dim == 0 and isinstance(value, list | tuple) and len(value) == items and not _holds_tensors(value):
            return value[start : start + length]
        return _mapped(value, cut)

    return cut(batch)


def join(parts: Sequence[Any], lengths: Sequence[int], shares: Sequence[float], dim: int = 0) -> Any:
    """Join what a loss function returned with the loss of each part, as if it had been given the whole batch.

    Tensors with a row for each item are joined, single numbers weighted by the parts' shares, containers joined element
    by element; anything else becomes a list of what each part has.
    """
    first = parts[0]
    if isinstance(first, torch.Tensor) and first.dim() > dim:
        if all(part.dim() > dim and part.size(dim) == length for part, length in zip(parts, lengths, strict=True)):
            return torch.cat(list(parts), dim)
        return list(parts)
    if isinstance(first, float) or (isinstance(first, torch.Tensor) and first.dim() == 0 and first.is_floating_point()):
        return sum(part * share for part, share in zip(parts, shares, strict=True))
    if isinstance(first, dict) and all(part.keys() == first.keys() for part in parts):
        return type(first)((key, join([part[key] for part in parts], lengths, shares, dim)) for key in first)
    if isinstance(first, tuple) and all(len(part) == len(first) for part in parts):
        columns = (join(column, lengths, shares, dim) for column in zip(*parts, strict=True))
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    return list(parts)


def _holds_tensors(value: Any) -> bool:
    return next(tensors_of(value), None) is not None


def _mapped(value: Any, cut: Callable[[Any], Any]) -> Any:
    """Return the same container with `cut` applied to every element; what is not known to be a container, as it is."""
    if isinstance(value, torch.Tensor):
        return value
    if type(value) is dict:
        return {key: cut(element) for key, element in value.items()}
    if _is_mapping(value):
        elements = {key: cut(element) for key, element in value.items()}
        if isinstance(value, dict):
            return type(value)(**elements) if _is_record(value) else type(value)(elements)
        made: Any = copy.copy(value)  # transformers' BatchEncoding and its like know more than their elements
        made.data = elements
        return made
    if isinstance(value, tuple) and _is_named(type(value)):
        return type(value)(*(cut(element) for element in value))
    if type(value) in (list, tuple):
        return type(value)(cut(element) for element in value)
    if _is_record(value):
        return replace(value, **{field.name: cut(getattr(value, field.name)) for field in fields(value) if field.init})
    return value
