"""Switches that a loss function may turn and leave turned when it fails: training or evaluation, `requires_grad`,
whether gradients are recorded; those of the whole process, such as autocast, the default type, the precision of
products, hooks on saved tensors; and hooks on modules that it has registered and not removed yet."""

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


def _read_switches() -> tuple[Any, ...]:
    """Return how everything in the process is switched now."""
    return tuple([read() for _, read, _ in _SWITCHES])


def switched(before: tuple[Any, ...]) -> list[str]:
    """Return the names of what is not switched as before."""
    return [name for (name, _, _), now, one in zip(_SWITCHES, _read_switches(), before, strict=True) if now != one]


def switch_back(before: tuple[Any, ...]) -> None:
    """Turn everything back."""
    if _read_switches() != before:
        for (_, _, turn), one in zip(_SWITCHES, before, strict=True):
            turn(one)


class Flags:
    """The switches of modules and parameters: `record()` before an attempt, `restore()` if it fails."""

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
        """Return what was switched, and not switched back."""
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
        """Turn everything back, and remove the hooks that were registered since."""
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
    """The hooks of modules and parameters that are the user's own."""

    def __init__(self, modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> None:
        self._modules = modules
        self._parameters = parameters
        self._next_id = -1
        self._own: list[Any] = []

    def own(self) -> list[Any]:
        """Return them; they are looked for again when another hook was registered anywhere."""
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
    """Yield the hooks registered since the number of the next one was noted: numbers rise in the whole process."""
    for owners, names in ((modules, _HOOKS_OF_MODULES), (parameters, _HOOKS_OF_PARAMETERS)):
        for owner in owners:
            for name in names:
                hooks = getattr(owner, name, None) or {}
                yield from ((owner, hooks, number) for number in list(hooks) if number >= next_id)
