"""Records and restores settings that a loss function may change.

Examples are `requires_grad`, autocast, the training mode, process-wide settings of PyTorch, and module hooks.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from types import FunctionType, MethodType
from typing import Any, Final

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ullage.training.guard.state.objects.node_of import is_installed

_training: Final = attrgetter("training")
_requires_grad: Final = attrgetter("requires_grad")
_HOOKS_OF_MODULES: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_BESIDE_HOOKS: Final = (
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
)
_HOOKS_OF_PARAMETERS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")


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
    ("autocast on the CPU", partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu")),
    ("autocast on the GPU", partial(torch.is_autocast_enabled, "cuda"), partial(torch.set_autocast_enabled, "cuda")),
    ("autocast's dtype on the CPU", partial(torch.get_autocast_dtype, "cpu"), partial(torch.set_autocast_dtype, "cpu")),
    (
        "autocast's dtype on the GPU",
        partial(torch.get_autocast_dtype, "cuda"),
        partial(torch.set_autocast_dtype, "cuda"),
    ),
    ("the saved-tensor hooks", _top_hooks, _drop_hooks),
)


def _read_switches() -> tuple[Any, ...]:
    return tuple([read() for _, read, _ in _SWITCHES])


def switched(before: tuple[Any, ...]) -> list[str]:
    """Return the names of PyTorch's process-wide settings that differ from those in `before`."""
    return [name for (name, _, _), now, one in zip(_SWITCHES, _read_switches(), before, strict=True) if now != one]


def switch_back(before: tuple[Any, ...]) -> None:
    """Set PyTorch's process-wide settings to the values in `before`."""
    if _read_switches() != before:
        for (_, _, turn), one in zip(_SWITCHES, before, strict=True):
            turn(one)


class Flags:
    """A record of the settings of modules and parameters, and of PyTorch's process-wide settings."""

    def __init__(self, modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> None:
        self._modules = modules
        self._parameters = parameters
        self._saved: tuple[list[bool], list[bool], bool, int, Any] | None = None

    def record(self) -> None:
        self._saved = (
            list(map(_training, self._modules)),
            list(map(_requires_grad, self._parameters)),
            torch.is_grad_enabled(),
            RemovableHandle.next_id,
            _read_switches(),
        )

    def changed(self) -> list[str]:
        """Return the names of the settings that have changed, and of the modules that have new hooks."""
        if self._saved is None:
            return []
        training, requires_grad, _, next_id, switches = self._saved
        found = switched(switches)
        found += [
            f"{type(module).__name__}.training"
            for module, before in zip(self._modules, training, strict=True)
            if module.training != before
        ]
        if list(map(_requires_grad, self._parameters)) != requires_grad:
            found.append("requires_grad of parameters")
        if RemovableHandle.next_id != next_id:
            new = _hooks_since(next_id, self._modules, self._parameters)
            found += [f"the hooks of a {type(owner).__name__}" for owner, _, _ in new]
        return found

    def restore(self) -> None:
        """Restore all settings, and remove new hooks."""
        if self._saved is None:
            return
        training, requires_grad, records_gradients, next_id, switches = self._saved
        switch_back(switches)
        for module, before in zip(self._modules, training, strict=True):
            if module.training != before:
                module.training = before
        for parameter, before in zip(self._parameters, requires_grad, strict=True):
            if parameter.requires_grad != before:
                parameter.requires_grad_(before)
        torch.set_grad_enabled(records_gradients)
        if RemovableHandle.next_id != next_id:
            for owner, hooks, number in list(_hooks_since(next_id, self._modules, self._parameters)):
                del hooks[number]
                for beside in _BESIDE_HOOKS:
                    getattr(owner, beside, {}).pop(number, None)


class Hooks:
    """Finds the hooks that the user has registered on modules and parameters."""

    def __init__(self, modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> None:
        self._modules = modules
        self._parameters = parameters
        self._next_id = -1
        self._own: list[Any] = []

    def own(self) -> list[Any]:
        """Return the hooks that the user has registered."""
        if RemovableHandle.next_id != self._next_id:
            self._next_id = RemovableHandle.next_id
            every = _hooks_since(0, self._modules, self._parameters)
            self._own = [hook for owner, hooks, number in every if not _is_installed(hook := hooks[number])]
        return self._own


def _is_installed(hook: Any) -> bool:
    if isinstance(hook, partial):
        return _is_installed(hook.func)
    return is_installed(hook if isinstance(hook, FunctionType | MethodType) else type(hook))


def _hooks_since(
    next_id: int, modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter]
) -> Iterator[tuple[Any, dict[int, Any], int]]:
    # PyTorch numbers the hooks of a process in the order of their creation.
    for owners, names in ((modules, _HOOKS_OF_MODULES), (parameters, _HOOKS_OF_PARAMETERS)):
        for owner in owners:
            for name in names:
                hooks = getattr(owner, name, None) or {}
                yield from ((owner, hooks, number) for number in list(hooks) if number >= next_id)
