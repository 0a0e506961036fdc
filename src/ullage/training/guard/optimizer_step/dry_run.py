"""A dry run of an optimizer's step: it allocates its state and its temporaries, and writes nothing.

What it allocates is what the step itself allocates next, in the same order; where that does not fit, this is known
before the first parameter has changed. It is for PyTorch's own optimizers, whose operations PyTorch sees all of.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as of_all
from torch.overrides import TorchFunctionMode

from ullage.training.guard.memory.retry_operations import targets_of


def try_out(optimizer: Optimizer, retrying: AbstractContextManager[Any]) -> None:
    """Run an optimizer's step without effect: parameters, gradients and state are as before, hooks are not called.

    Args:
        optimizer: one of PyTorch's own.
        retrying: a mode that retries operations that run out of memory; used while values are restored.

    Raises:
        torch.OutOfMemoryError: the state or the temporaries do not fit; nothing has changed then either.
    """
    writes = _Unwritten()
    try:
        with _without_hooks(optimizer), _state_kept(optimizer), writes:
            optimizer.step()
    finally:
        with retrying:
            writes.undo()


class _Unwritten(TorchFunctionMode):
    """Skips in-place writes, except to single numbers such as the step count; those are restored afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        targets = targets_of(getattr(func, "__name__", ""), args, kwargs)
        if not targets:
            return func(*args, **kwargs)
        if any(target.numel() != 1 for target in targets):
            return args[0] if args else kwargs["out"]
        for target in targets:
            if id(target) not in self._before:
                self._before[id(target)] = (target, target.detach().clone())
        return func(*args, **kwargs)

    def undo(self) -> None:
        with torch.no_grad():
            for target, before in self._before.values():
                target.copy_(before)
        self._before.clear()


@contextmanager
def _state_kept(optimizer: Optimizer) -> Iterator[None]:
    """Drop the optimizer state that is created inside this context."""
    before = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    try:
        yield
    finally:
        for parameter in list(optimizer.state):
            if parameter in before:
                optimizer.state[parameter].clear()
                optimizer.state[parameter].update(before[parameter])
            else:
                del optimizer.state[parameter]


@contextmanager
def _without_hooks(optimizer: Optimizer) -> Iterator[None]:
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    hooks = {name: getattr(optimizer, name) for name in names}
    shared = [(hooks_of_all, dict(hooks_of_all)) for hooks_of_all in _HOOKS_OF_ALL_OPTIMIZERS]
    for name in hooks:
        setattr(optimizer, name, OrderedDict())
    for hooks_of_all, _ in shared:
        hooks_of_all.clear()  # handles that take hooks out again hold these very dicts
    try:
        yield
    finally:
        for name, value in hooks.items():
            setattr(optimizer, name, value)
        for hooks_of_all, value in shared:
            hooks_of_all.update(value)


def has_hooks(optimizer: Optimizer) -> bool:
    """Tell whether a step calls hooks: the optimizer's own, or those registered for all optimizers."""
    return bool(
        optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks or any(_HOOKS_OF_ALL_OPTIMIZERS)
    )


_HOOKS_OF_ALL_OPTIMIZERS: Final[tuple[dict[int, Any], ...]] = (
    of_all._global_optimizer_pre_hooks,
    of_all._global_optimizer_post_hooks,
)
"""PyTorch's dictionaries of hooks that the steps of all optimizers call."""
