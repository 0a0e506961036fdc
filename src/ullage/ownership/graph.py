"""What autograd's graphs hold: the tensors that forward saved for backward, which have no name in Python.

Walked from the tensors that have a `grad_fn`, along `next_functions`; a function's saved tensors are read as they lie
(`_raw_saved_*`, `SavedTensor.data`: PyTorch 2.9 and later), because unpacking them would run the user's hooks. Earlier
versions do not show them, and what a graph holds is unknown there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import forward_ad

_RAW: Final = "_raw_saved_"
_SAME: Final = frozenset(
    f"{name}Backward0"
    for name in (
        "T", "Transpose", "Permute", "ToCopy", "View", "UnsafeView", "ReshapeAlias", "AsStrided", "Expand", "Unsqueeze",
        "Squeeze", "Slice", "Select", "Split", "SplitWithSizes", "Clone", "Alias", "WeightNormInterface",
    )
)  # fmt: skip
"""Functions between a parameter and the one that computes with it."""
_FAR: Final = 16
"""Functions that a module is looked for behind."""


@dataclass(frozen=True, slots=True)
class Saved:
    """One value that a function of a graph holds."""

    value: Any
    """A tensor, or what a hook has packed one into."""
    function: Any
    """The function, such as an AddmmBackward0."""
    start: int
    """Which of the tensors that the walk began with leads to it."""


def saved_in(starts: Iterable[tuple[int, Any]], seen: dict[int, Any]) -> Iterator[Saved | tuple[Any, int]]:
    """Yield what graphs hold, and each function of them that is written in Python, with the start that led to it.

    Args:
        starts: a number, and a `grad_fn` or None.
        seen: the functions that are not walked again, by their `id`; those that are met are added. A function's Python
            object lives as long as it is held, and only then does its `id` tell it from others.
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
    """Return the functions that backward goes on to from one."""
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
    """Yield what a SavedTensor holds: a tensor or what a hook has packed, and the hook that computes it again."""
    for part in ("data", "unpack_hook"):
        try:
            value = getattr(saved, part)
        except (RuntimeError, AttributeError):
            continue
        if value is not None:
            yield value


def variable_of(function: Any) -> Tensor | None:
    """Return the tensor whose gradient a function adds to, if it is one that does."""
    if type(function).__name__ != "AccumulateGrad":
        return None
    variable = function.variable
    return variable if isinstance(variable, Tensor) else None


def described(function: Any, names: Mapping[int, str]) -> str:
    """Say which function it is and of which module: "AddmmBackward0 of 'block.3.mlp'".

    A function with no parameters of its own is told by the one before it in forward, as long as there is only one.

    Args:
        function: of a graph.
        names: modules by the `id` of the parameters that they own.
    """
    text = type(function).__name__
    current = function
    for step in range(_FAR):
        found = {names[id(one)] for one in _variables_at(current) if id(one) in names}
        if found:
            return f"{text} {'after' if step else 'of'} '{found.pop()}'" if len(found) == 1 else text
        before = next_of(current)
        if len(before) != 1:
            break
        current = before[0]
    return text


def _variables_at(function: Any) -> Iterator[Tensor]:
    """Yield the leaves that a function computes with, also through functions that only look at them otherwise."""
    waiting = [(one, 0) for one in next_of(function)]
    while waiting:
        one, depth = waiting.pop()
        variable = variable_of(one)
        if variable is not None:
            yield variable
        elif depth < _FAR and type(one).__name__ in _SAME:
            waiting += [(following, depth + 1) for following in next_of(one)]


def tangent_of(tensor: Tensor) -> Tensor | None:
    """Return what forward-mode differentiation carries along with a tensor."""
    level = forward_ad._current_level
    if level < 0:
        return None
    tangent: Tensor | None = torch._VF._unpack_dual(tensor, level=level)[1]
    return tangent
