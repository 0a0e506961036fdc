"""Switches of the whole process that a loss function may turn by hand and leave turned when it fails: autocast, the
default type, the precision of products, hooks on saved tensors."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

_top: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
_top_hooks: Final[Callable[[], Any]] = partial(_top, True) if _top is not None else lambda: None  # noqa: FBT003
"""Returns the hooks that were set last on what is saved for backward; torch 2.6 and 2.7 do not tell them."""


def _nesting() -> int:
    """Return the number of open autocasts."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def _close_autocasts(nesting: int) -> None:
    """Close autocasts until so many are open."""
    while _nesting() > nesting:
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


def _drop_hooks(hooks: Any) -> None:
    """Drop the hooks on what is saved for backward that were set after these."""
    while (top := _top_hooks()) is not None and top != hooks:
        torch._C._autograd._pop_saved_tensors_default_hooks()


_SWITCHES: Final[tuple[tuple[str, Callable[[], Any], Callable[[Any], Any]], ...]] = (
    ("the default type", torch.get_default_dtype, torch.set_default_dtype),
    ("the precision of products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    ("autocast", _nesting, _close_autocasts),
    ("autocast on the CPU", partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu")),
    ("autocast on the card", partial(torch.is_autocast_enabled, "cuda"), partial(torch.set_autocast_enabled, "cuda")),
    ("autocast's type on the CPU", partial(torch.get_autocast_dtype, "cpu"), partial(torch.set_autocast_dtype, "cpu")),
    (
        "autocast's type on the card",
        partial(torch.get_autocast_dtype, "cuda"),
        partial(torch.set_autocast_dtype, "cuda"),
    ),
    ("the hooks on saved tensors", _top_hooks, _drop_hooks),
)
"""The name of each switch, how it is read, and how it is turned."""


def read_switches() -> tuple[Any, ...]:
    """Return how everything is switched now."""
    return tuple([read() for _, read, _ in _SWITCHES])


def switched(before: tuple[Any, ...]) -> list[str]:
    """Return the names of what is not switched as before."""
    return [name for (name, _, _), now, one in zip(_SWITCHES, read_switches(), before, strict=True) if now != one]


def switch_back(before: tuple[Any, ...]) -> None:
    """Turn everything back."""
    if read_switches() != before:
        for (_, _, turn), one in zip(_SWITCHES, before, strict=True):
            turn(one)
