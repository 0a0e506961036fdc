"""Switches of the whole process that a loss function may turn by hand and leave turned when it fails: autocast, the
default type, the precision of products, hooks on saved tensors."""

from typing import Any, Final

import torch

_DEVICES: Final = ("cpu", "cuda")


_NAMES: Final = (
    "the default type",
    "the precision of products",
    "autocast",
    "autocast's cache",
    "the hooks on saved tensors",
    *(f"autocast on {device}" for device in _DEVICES),
)


def read_switches() -> tuple[Any, ...]:
    """Return how everything is switched now."""
    return (
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        _nesting(),
        torch.is_autocast_cache_enabled(),
        _top_hooks(),
        *((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES),
    )


def switched(before: tuple[Any, ...]) -> list[str]:
    """Return the names of what is not switched as before."""
    return [name for name, now, one in zip(_NAMES, read_switches(), before, strict=True) if now != one]


def switch_back(before: tuple[Any, ...]) -> None:
    """Turn everything back."""
    if read_switches() == before:
        return
    default, precision, nesting, is_cached, hooks, *autocasts = before
    torch.set_default_dtype(default)
    torch.set_float32_matmul_precision(precision)
    while _nesting() > nesting:
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(is_cached)
    for device, (is_enabled, dtype) in zip(_DEVICES, autocasts, strict=True):
        torch.set_autocast_enabled(device, is_enabled)
        torch.set_autocast_dtype(device, dtype)
    while (top := _top_hooks()) is not None and top != hooks:
        torch._C._autograd._pop_saved_tensors_default_hooks()


def _nesting() -> int:
    """Return how many autocasts are open: PyTorch tells it when one more is opened or closed."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def _top_hooks() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)  # noqa: FBT003
