"""Find the tensors of a batch, and the names of their variables in the function that calls the model."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ullage.predicting.changes.training.facts import BatchTensor
from ullage.training.ownership.root import variables_of

_MOST_NAMES = 64


def batch_of(frame: FrameType | None, arguments: Iterable[Tensor]) -> list[BatchTensor]:
    """Return the input tensors of the model, and the caller's other tensors with the same number of rows.

    Args:
        frame: the stack frame of the function that calls the model; None if no user function calls it.
        arguments: the arguments of the model's call.
    """
    given = [each for each in arguments if each.grad_fn is None and each.ndim and not isinstance(each, nn.Parameter)]
    named = dict(_named(variables_of(frame))) if frame is not None else {}
    names = {name for name, tensor in named.items() if any(_shares(tensor, each) for each in given)}
    unnamed = [each for each in given if not any(_shares(named[name], each) for name in names)]
    rows = {size for each in given for size in _sizes(each)[:1]}
    beside = {
        name
        for name, tensor in named.items()
        if len(rows) == 1 and not rows.isdisjoint(_sizes(tensor)[:1]) and _is_data(tensor)
    }
    found = [_fact(name, tensor) for name, tensor in named.items() if name in names | beside]
    return [*found[:_MOST_NAMES], *(_fact("", tensor) for tensor in unnamed)]


def items_of(arguments: Iterable[Tensor]) -> int | None:
    """Return the batch size, or None if the tensors differ in their first dimension."""
    rows = {size for each in arguments if not isinstance(each, nn.Parameter) for size in _sizes(each)[:1]}
    return rows.pop() if len(rows) == 1 else None


def sharing(frame: FrameType, tensor: Any) -> list[BatchTensor]:
    """Return the tensors in a function's variables that share memory with `tensor`."""
    named = _named(variables_of(frame)) if isinstance(tensor, Tensor) else ()
    return [_fact(name, each) for name, each in named if each.ndim and _is_data(each) and _shares(each, tensor)]


def _is_data(tensor: Tensor) -> bool:
    return tensor.grad_fn is None and not isinstance(tensor, nn.Parameter)


def _fact(name: str, tensor: Tensor) -> BatchTensor:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return BatchTensor(name=name, shape=_sizes(tensor), dtype=dtype)


# The sizes up to the first one that is not a number: a jagged nested tensor has a symbol there, and a strided nested
# tensor has no sizes.
def _sizes(tensor: Tensor) -> list[int]:
    if tensor.is_nested and tensor.layout is torch.strided:
        return []
    return [int(size) for size in takewhile(lambda size: type(size) is int, tensor.shape)]


def _named(variables: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, value in variables.items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, dict) or isinstance(getattr(value, "data", None), dict):  # transformers' BatchEncoding
            value = value if isinstance(value, dict) else value.data
            yield from ((f'{name}["{key}"]', one) for key, one in value.items() if isinstance(one, Tensor))
        elif isinstance(value, list | tuple) and len(value) < _MOST_NAMES:
            yield from ((f"{name}[{number}]", one) for number, one in enumerate(value) if isinstance(one, Tensor))


def _shares(one: Tensor, other: Any) -> bool:
    if not isinstance(other, Tensor):
        return False
    try:
        return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return one is other


def merged(first: Sequence[BatchTensor], second: Sequence[BatchTensor]) -> list[BatchTensor]:
    """Join two lists of batch tensors, and keep only one tensor of each name."""
    known = {each.name for each in first}
    return [*first, *(each for each in second if each.name not in known)]
