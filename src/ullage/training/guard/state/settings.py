"""Records and restores settings that a loss function may change, and finds the hooks of modules and parameters.

Examples are `requires_grad`, autocast, the gradient mode, and other process-wide settings of PyTorch.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from types import FunctionType, MethodType
from typing import Any, Final

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ullage.training.guard.state.objects.installed import is_installed

_requires_grad: Final = attrgetter("requires_grad")
_HOOKS: Final = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    "_post_accumulate_grad_hooks",
)
_BESIDE_HOOKS: Final = (
    *("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs"),
)


_top: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
# Returns the innermost saved-tensor hooks. Returns None in torch 2.6 and 2.7, which cannot report them.
_top_hooks: Final[Callable[[], Any]] = partial(_top, True) if _top is not None else lambda: None  # noqa: FBT003


def _nesting() -> int:
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def _close_autocasts(nesting: int) -> None:
    while _nesting() > nesting:
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


def _drop_hooks(hooks: Any) -> None:
    while (top := _top_hooks()) is not None and top != hooks:
        torch._C._autograd._pop_saved_tensors_default_hooks()


# The process-wide settings of PyTorch: the name of each, and the functions that read and set it.
_SWITCHES: Final[tuple[tuple[str, Callable[[], Any], Callable[[Any], Any]], ...]] = (
    ("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("the precision of matrix products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    ("autocast", _nesting, _close_autocasts),
    *(
        (f"autocast{what} on the {name}", partial(read, device), partial(write, device))
        for device, name in (("cpu", "CPU"), ("cuda", "GPU"))
        for what, read, write in (
            ("", torch.is_autocast_enabled, torch.set_autocast_enabled),
            ("'s dtype", torch.get_autocast_dtype, torch.set_autocast_dtype),
        )
    ),
    ("the saved-tensor hooks", _top_hooks, _drop_hooks),
)


def _read_switches() -> tuple[Any, ...]:
    return tuple([read() for _, read, _ in _SWITCHES])


class TorchSettings:
    """A record of PyTorch's process-wide settings, of `requires_grad`, and of the hooks of modules and parameters."""

    def __init__(self, modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> None:
        self._owners = [*modules, *parameters]
        self._parameters = parameters
        self._saved: tuple[list[bool], bool, int, Any] | None = None
        self._hooks_until = -1
        self._own_hooks: list[Any] = []
        self._hooked: list[dict[int, Any]] = []
        self._hook_counts: list[int] = []

    def record(self) -> None:
        requires_grad = list(map(_requires_grad, self._parameters))
        self._saved = requires_grad, torch.is_grad_enabled(), RemovableHandle.next_id, _read_switches()

    def changed(self) -> list[str]:
        """Return the names of the settings that have changed, and of the modules that have new hooks."""
        if self._saved is None:
            return []
        requires_grad, _, next_id, switches = self._saved
        pairs = zip(_SWITCHES, _read_switches(), switches, strict=True)
        found = [name for (name, _, _), now, before in pairs if now != before]
        if list(map(_requires_grad, self._parameters)) != requires_grad:
            found.append("requires_grad of parameters")
        return found + [f"the hooks of a {type(owner).__name__}" for owner, _, _ in self._hooks_since(next_id)]

    def restore(self) -> None:
        """Restore all settings, and remove new hooks."""
        if self._saved is None:
            return
        requires_grad, records_gradients, next_id, switches = self._saved
        if _read_switches() != switches:
            for (_, _, turn), before in zip(_SWITCHES, switches, strict=True):
                turn(before)
        for parameter, before in zip(self._parameters, requires_grad, strict=True):
            if parameter.requires_grad != before:
                parameter.requires_grad_(before)
        torch.set_grad_enabled(records_gradients)
        for owner, hooks, number in list(self._hooks_since(next_id)):
            del hooks[number]
            for beside in _BESIDE_HOOKS:
                getattr(owner, beside, {}).pop(number, None)

    def own_hooks(self) -> list[Any]:
        """Return the hooks that the user has registered on modules and parameters."""
        is_removed = list(map(len, self._hooked)) != self._hook_counts
        if RemovableHandle.next_id != self._hooks_until or is_removed:
            self._hooks_until = RemovableHandle.next_id
            every = list(self._hooks_since(0))
            self._hooked = list({id(hooks): hooks for _, hooks, _ in every}.values())
            self._hook_counts = list(map(len, self._hooked))
            self._own_hooks = [hook for _, hooks, number in every if not _is_installed(hook := hooks[number])]
        return self._own_hooks

    def _hooks_since(self, next_id: int) -> Iterator[tuple[Any, dict[int, Any], int]]:
        # PyTorch numbers the hooks of a process in the order of their creation.
        if RemovableHandle.next_id == next_id:
            return
        for owner in self._owners:
            for name in _HOOKS:
                hooks = getattr(owner, name, None) or {}
                yield from ((owner, hooks, number) for number in list(hooks) if number >= next_id)


def _is_installed(hook: Any) -> bool:
    if isinstance(hook, partial):
        return _is_installed(hook.func)
    return is_installed(hook if isinstance(hook, FunctionType | MethodType) else type(hook))
