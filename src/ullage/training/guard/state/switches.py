"""Switches of the whole process that a loss function may turn by hand and leave turned when it fails: autocast, the
default type, the precision of products, hooks on saved tensors."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

_top: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
_top_hooks: Final[Callable[[], Any]] = partial(_top, True) if _top is not None else lambda: None  # noqa: FBT003
"""Returns the hooks that were set last on what is saved for backward; torch 2.6 and 2.7 do not tell them."""
_NAMES: Final = (
    "the default type",
    "the precision of products",
    "autocast",
    "autocast",
    "autocast on the CPU",
    "autocast on the card",
    "autocast's type on the CPU",
    "autocast's type on the card",
    "the hooks on saved tensors",
)
"""The switches, in the order in which they are read. The number of open autocasts is told where it has changed."""


def read_switches() -> tuple[Any, ...]:
    """Return how everything is switched now."""
    return (
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.autocast_increment_nesting(),
        torch.autocast_decrement_nesting(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cpu"),
        torch.get_autocast_dtype("cuda"),
        _top_hooks(),
    )


def switched(before: tuple[Any, ...]) -> list[str]:
    """Return the names of what is not switched as before."""
    return [name for name, now, one in zip(_NAMES, read_switches(), before, strict=True) if now != one]


def switch_back(before: tuple[Any, ...]) -> None:
    """Turn everything back."""
    if read_switches() == before:
        return
    default, precision, _, nesting, on_cpu, on_card, type_on_cpu, type_on_card, hooks = before
    torch.set_default_dtype(default)
    torch.set_float32_matmul_precision(precision)
    while torch.autocast_increment_nesting() > nesting + 1:
        torch.autocast_decrement_nesting()
        torch.autocast_decrement_nesting()
    torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
    torch.set_autocast_enabled("cpu", on_cpu)
    torch.set_autocast_enabled("cuda", on_card)
    torch.set_autocast_dtype("cpu", type_on_cpu)
    torch.set_autocast_dtype("cuda", type_on_card)
    while (top := _top_hooks()) is not None and top != hooks:
        torch._C._autograd._pop_saved_tensors_default_hooks()
