"""Find the shapes of all tensors in an item or a batch."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from numbers import Number
from typing import Any, Final

import numpy as np

from ullage.predicting.epoch.requests import Ints

Form = tuple[tuple[str, tuple[int, ...]], ...]
"""The name and the shape of each tensor, array or list of numbers in an item or a batch."""
Layout = tuple[tuple[str, int], ...]
"""The name and the number of dimensions of each tensor, array or list of numbers in an item or a batch."""
_DEPTH: Final = 5
_LEAVES: Final = 2048


def form_of(value: Any) -> Form:
    """Return the shapes of the tensors, arrays and lists of numbers in a value, including those in containers."""
    return tuple(islice(_leaves(value, "", 0), _LEAVES))


def _leaves(value: Any, name: str, depth: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):  # torch.Size is a tuple too
        yield name, tuple(shape)
    elif value is None or isinstance(value, Number | str | bytes):
        yield name, ()
    elif depth == _DEPTH:
        return
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key), depth + 1)
    elif isinstance(value, list | tuple):
        if value and isinstance(value[0], Number):
            yield name, (len(value),)
        else:
            for number, inner in enumerate(value):
                yield from _leaves(inner, f"{name}.{number}" if name else str(number), depth + 1)
    elif hasattr(value, "data") and isinstance(getattr(value, "data", None), Mapping):  # BatchEncoding
        yield from _leaves(value.data, name, depth)
    elif isinstance(getattr(value, "__dict__", None), dict):
        store = vars(value).get("_store")  # torch_geometric's
        inside = vars(store).get("_mapping", {}) if store is not None and hasattr(store, "__dict__") else vars(value)
        yield from _leaves(dict(inside), name, depth + 1)


def layout_of(forms: Sequence[Form]) -> Layout | None:
    """Return the name and number of dimensions of each tensor, or None if they differ between the given shapes."""
    layouts = {tuple((name, len(shape)) for name, shape in form) for form in forms}
    return layouts.pop() if len(layouts) == 1 else None


def dims_of(forms: Sequence[Form]) -> Ints:
    """Return the sizes of all dimensions, one row per item or batch."""
    return np.array([[size for _, shape in form for size in shape] for form in forms], np.int64).reshape(len(forms), -1)


def elements(form: Form) -> int:
    """Return the number of elements of the largest tensor in an item or a batch."""
    return max((prod(shape) for _, shape in form), default=0)


def longest(form: Form) -> int:
    """Return the largest size of any tensor dimension except the first.

    If all tensors have one dimension, return the largest of these.
    """
    inner = [size for _, shape in form for size in shape[1:]]
    return max(inner or [size for _, shape in form for size in shape], default=0)


def text_of(form: Form) -> str:
    """Return the shapes of the first tensors in an item or a batch, as text for reports."""
    shown = [f"{name or 'tensor'} {' x '.join(map(str, shape))}" for name, shape in form if shape]
    more = f", and {len(shown) - 3} more" if len(shown) > 3 else ""
    return ", ".join(shown[:3]) + more
