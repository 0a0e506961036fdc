"""The first step of an optimizer, which creates its state: it is applied completely or not at all.

For PyTorch's own optimizers, whose operations PyTorch sees all of, there is a dry run: it allocates the state and the
temporaries, and writes nothing. What it allocates is what the step itself allocates next, in the same order; where that
does not fit, this is known before the first parameter has changed.

There is no dry run of others, because what they do outside of PyTorch's operations cannot be seen. So their parameters
and their state are copied to the host once, before the step that creates the state, and restored if that does not fit.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as of_all
from torch.overrides import TorchFunctionMode

from ullage.training.guard.memory.retry_operations import targets_of
from ullage.training.guard.state.written_parameters import parameters_in


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


def all_or_nothing(optimizer: Optimizer, run: Callable[[], Any], is_makeshift: Callable[[torch.Tensor], bool]) -> None:
    """Run a step of an optimizer that is not PyTorch's; restore everything if its state does not fit.

    Args:
        optimizer: any optimizer.
        run: its step, perhaps through a gradient scaler.
        is_makeshift: tells whether a tensor was allocated on the host because there was no room on the card.

    Raises:
        torch.OutOfMemoryError: its state does not fit; parameters, state and groups are as before.
    """
    state = {parameter: dict(own) for parameter, own in optimizer.state.items()}
    tensors = [value for own in state.values() for value in own.values() if isinstance(value, torch.Tensor)]
    written = dict.fromkeys([*parameters_in([optimizer]), *tensors])
    values = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in written]
    groups = [dict(group) for group in optimizer.param_groups]
    try:
        run()
        every = [value for own in optimizer.state.values() for value in own.values()]
        stray = next((value for value in every if isinstance(value, torch.Tensor) and is_makeshift(value)), None)
        if stray is not None:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. The state of {type(optimizer).__name__} does not fit beside the parameters: "
                f"there was no room for {stray.nbytes:,} bytes of it"
            )
    except BaseException:
        with torch.no_grad():
            for tensor, value in values:
                tensor.copy_(value)
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            group.update(before)
        raise
