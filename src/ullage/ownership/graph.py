"""What autograd's graphs hold: the tensors that forward saved for backward, which have no name in Python.

Walked from the tensors that have a `grad_fn`, along `next_functions`; a function's saved tensors are read as they lie
(`_raw_saved_*`, `SavedTensor.data`: PyTorch 2.9 and later), because unpacking them would run the user's hooks. Earlier
versions do not show them, and what a graph holds is unknown there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_RAW = "_raw_saved_"


@dataclass(frozen=True, slots=True)
class Saved:
    """One value that a function of a graph holds."""

    value: Any
    """A tensor, or what a hook has packed one into."""
    function: str
    """The function's name, such as AddmmBackward0."""
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
            following += [(start, one) for one, _ in function.next_functions if one is not None]
        level = following


def _saved_by(function: Any, names: list[str], start: int) -> Iterator[Saved]:
    name = type(function).__name__
    for attribute in names:
        try:
            raw = getattr(function, attribute)
        except RuntimeError:
            continue  # given up after backward
        for one in raw if isinstance(raw, tuple | list) else (raw,):
            for part in ("data", "unpack_hook"):  # a hook may keep what it computes the tensor from
                try:
                    value = getattr(one, part)
                except (RuntimeError, AttributeError):
                    continue
                if value is not None:
                    yield Saved(value, name, start)
    if name == "AccumulateGrad":
        variable = function.variable
        if isinstance(variable, Tensor):
            yield Saved(variable, name, start)
