"""Finds tensors that the forward pass saved for backward and that no Python variable refers to.

Autograd graphs are searched from the `grad_fn` of tensors. Saved tensors are read without unpacking, because unpacking
would run the user's hooks. This needs PyTorch 2.9 or later.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import forward_ad

_RAW: Final = "_raw_saved_"
# The names of autograd functions of views and casts. They may be between a parameter and the function that computes
# with it.
_PASS_THROUGH_FUNCTIONS: Final = frozenset(
    f"{name}Backward0"
    for name in (
        "T", "Transpose", "Permute", "ToCopy", "View", "UnsafeView", "ReshapeAlias", "AsStrided", "Expand", "Unsqueeze",
        "Squeeze", "Slice", "Select", "Split", "SplitWithSizes", "Clone", "Alias", "WeightNormInterface",
    )
)  # fmt: skip
# The parameters of a module show which autograd functions belong to it. At most this many functions may be between a
# parameter and such a function.
_MAX_FUNCTIONS_APART: Final = 16


@dataclass(frozen=True, slots=True)
class Saved:
    """A value that an autograd function has saved for backward."""

    value: Any
    """The saved tensor, or the object to which a saved-tensor hook packed it."""
    function: Any
    """The autograd function that saved the value, such as an AddmmBackward0."""
    start: int
    """The index of the tensor from whose `grad_fn` the search began."""


def saved_in(starts: Iterable[tuple[int, Any]], seen: dict[int, Any]) -> Iterator[Saved | tuple[Any, int]]:
    """Yield the values that autograd functions have saved. Yield autograd functions that are written in Python, too.

    Args:
        starts: pairs of a tensor's index, and its `grad_fn` or None.
        seen: functions that are skipped, by their `id`; visited functions are added. The dictionary holds references to
            the functions, so that their `id` is not reused.
    """
    names: dict[type, list[str]] = {}
    level = [(start, function) for start, function in starts if function is not None]
    while level:
        following = []
        for start, function in level:
            if id(function) in seen:
                continue
            seen[id(function)] = function
            kind = type(function)
            if kind not in names:
                names[kind] = [name for name in dir(kind) if name.startswith(_RAW)]
            yield from _saved_by(function, names[kind], start)
            if issubclass(kind, torch._C._FunctionBase):
                yield function, start
            following += [(start, one) for one in next_of(function)]
        level = following


def next_of(function: Any) -> list[Any]:
    """Return the autograd functions that backward runs after this one (its `next_functions`)."""
    try:
        return [one for one, _ in function.next_functions if one is not None]
    except RuntimeError:
        return []  # the `ctx` of a function that has been freed


def _saved_by(function: Any, names: list[str], start: int) -> Iterator[Saved]:
    for attribute in names:
        try:
            raw = getattr(function, attribute)
        except RuntimeError:
            continue  # freed by backward
        for one in raw if isinstance(raw, tuple | list) else (raw,):
            for value in values_of(one):
                yield Saved(value, function, start)
    variable = variable_of(function)
    if variable is not None:
        yield Saved(variable, function, start)


def values_of(saved: Any) -> Iterator[Any]:
    """Yield the objects to which a SavedTensor refers: the tensor, or the objects of its hooks."""
    for part in ("data", "unpack_hook"):
        try:
            value = getattr(saved, part)
        except (RuntimeError, AttributeError):
            continue
        if value is not None:
            yield value


def variable_of(function: Any) -> Tensor | None:
    """Return the leaf tensor of an AccumulateGrad function. None for any other function."""
    if type(function).__name__ != "AccumulateGrad":
        return None
    variable = function.variable
    return variable if isinstance(variable, Tensor) else None


def described(function: Any, names: Mapping[int, str]) -> str:
    """Return the name of an autograd function with its module, such as "AddmmBackward0 of 'block.3.mlp'".

    Args:
        function: a function of an autograd graph.
        names: the names of modules, by the `id` of the parameters that they own.
    """
    text = type(function).__name__
    current = function
    for step in range(_MAX_FUNCTIONS_APART):
        found = {names[id(one)] for one in _variables_at(current) if id(one) in names}
        if found:
            return f"{text} {'after' if step else 'of'} '{found.pop()}'" if len(found) == 1 else text
        before = next_of(current)
        if len(before) != 1:
            break
        current = before[0]
    return text


def _variables_at(function: Any) -> Iterator[Tensor]:
    waiting = [(one, 0) for one in next_of(function)]
    while waiting:
        one, depth = waiting.pop()
        variable = variable_of(one)
        if variable is not None:
            yield variable
        elif depth < _MAX_FUNCTIONS_APART and type(one).__name__ in _PASS_THROUGH_FUNCTIONS:
            waiting += [(following, depth + 1) for following in next_of(one)]


def tangent_of(tensor: Tensor) -> Tensor | None:
    """Return the tangent of a tensor in forward-mode differentiation. None if it has no tangent."""
    level = forward_ad._current_level
    if level < 0:
        return None
    tangent: Tensor | None = torch._VF._unpack_dual(tensor, level=level)[1]
    return tangent
