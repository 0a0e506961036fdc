"""The contents of autograd graphs: the tensors that forward saved for backward, to which no Python variable refers.

Graphs are walked from the tensors that have a `grad_fn`, along `next_functions`. A function's saved tensors are read
without unpacking (`_raw_saved_*`, `SavedTensor.data`: PyTorch 2.9 and later), because unpacking would run the user's
hooks. Earlier versions do not offer this, and what a graph holds is unknown there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import forward_ad

_RAW: Final = "_raw_saved_"
_PASS_THROUGH_FUNCTIONS: Final = frozenset(
    f"{name}Backward0"
    for name in (
        "T", "Transpose", "Permute", "ToCopy", "View", "UnsafeView", "ReshapeAlias", "AsStrided", "Expand", "Unsqueeze",
        "Squeeze", "Slice", "Select", "Split", "SplitWithSizes", "Clone", "Alias", "WeightNormInterface",
    )
)  # fmt: skip
"""Functions of views and casts that may stand between a parameter and the function that computes with it."""
_MAX_FUNCTIONS_APART: Final = 16
"""The number of functions within which a function's module is searched."""


@dataclass(frozen=True, slots=True)
class Saved:
    """One value that a function of an autograd graph has saved."""

    value: Any
    """The saved tensor, or the object into which a hook has packed it."""
    function: Any
    """The function that has saved it, such as an AddmmBackward0."""
    start: int
    """The number of the start from which the walk reached it."""


def saved_in(starts: Iterable[tuple[int, Any]], seen: dict[int, Any]) -> Iterator[Saved | tuple[Any, int]]:
    """Yield the values saved in graphs, and each function of them written in Python with the start that led to it.

    Args:
        starts: pairs of a number, and a `grad_fn` or None.
        seen: the functions that are not walked again, by their `id`; functions that are met are added. Holding a
            function's Python object keeps its `id` unique.
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
    """Return the functions that backward runs after this one."""
    try:
        return [one for one, _ in function.next_functions if one is not None]
    except RuntimeError:
        return []  # the `ctx` of a function that has gone


def _saved_by(function: Any, names: list[str], start: int) -> Iterator[Saved]:
    for attribute in names:
        try:
            raw = getattr(function, attribute)
        except RuntimeError:
            continue  # given up after backward
        for one in raw if isinstance(raw, tuple | list) else (raw,):
            for value in values_of(one):
                yield Saved(value, function, start)
    variable = variable_of(function)
    if variable is not None:
        yield Saved(variable, function, start)


def values_of(saved: Any) -> Iterator[Any]:
    """Yield what a SavedTensor holds: a tensor or the object that a hook has packed, and the hook that unpacks it."""
    for part in ("data", "unpack_hook"):
        try:
            value = getattr(saved, part)
        except (RuntimeError, AttributeError):
            continue
        if value is not None:
            yield value


def variable_of(function: Any) -> Tensor | None:
    """Return the tensor to whose gradient a function adds, if it is an AccumulateGrad; else None."""
    if type(function).__name__ != "AccumulateGrad":
        return None
    variable = function.variable
    return variable if isinstance(variable, Tensor) else None


def described(function: Any, names: Mapping[int, str]) -> str:
    """Return the name of a function and of its module: "AddmmBackward0 of 'block.3.mlp'".

    A function without parameters is described by the one before it in forward, if there is only one.

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
    """Yield the leaf tensors that a function computes with, directly or through views and casts of them."""
    waiting = [(one, 0) for one in next_of(function)]
    while waiting:
        one, depth = waiting.pop()
        variable = variable_of(one)
        if variable is not None:
            yield variable
        elif depth < _MAX_FUNCTIONS_APART and type(one).__name__ in _PASS_THROUGH_FUNCTIONS:
            waiting += [(following, depth + 1) for following in next_of(one)]


def tangent_of(tensor: Tensor) -> Tensor | None:
    """Return the tangent that forward-mode differentiation attaches to a tensor; None if there is none."""
    level = forward_ad._current_level
    if level < 0:
        return None
    tangent: Tensor | None = torch._VF._unpack_dual(tensor, level=level)[1]
    return tangent
