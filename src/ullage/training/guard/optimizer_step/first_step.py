"""Runs the first step of an optimizer, which creates its state, either completely or not at all.

The optimizers of `torch.optim` get a dry run, which allocates memory but writes nothing. For other optimizers,
parameters and state are copied to host memory first, and restored if memory runs out.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as of_all
from torch.overrides import TorchFunctionMode

from ullage.training.guard.memory.retry_operations import targets_of
from ullage.training.guard.state.copies import parameters_in


def try_out(optimizer: Optimizer, retrying: AbstractContextManager[Any]) -> None:
    """Run an optimizer's step and undo it. Parameters, gradients and state do not change.

    Args:
        optimizer: an optimizer of `torch.optim`.
        retrying: a mode that retries operations that run out of memory; used while values are restored.

    Raises:
        torch.OutOfMemoryError: the state or the temporaries do not fit; nothing has changed.
    """
    writes = _Unwritten(parameters_in([optimizer]))
    try:
        with _without_hooks(optimizer), _state_kept(optimizer), writes:
            optimizer.step()
    finally:
        with retrying:
            writes.undo()


class _Unwritten(TorchFunctionMode):
    # Writes to tensors with one element, such as the step count, are executed and undone afterwards. Parameters are not
    # written at all: that would change their version counters.
    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._parameters = set(map(id, parameters))
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        targets = targets_of(getattr(func, "__name__", ""), args, kwargs)
        if not targets:
            return func(*args, **kwargs)
        if any(target.numel() != 1 or id(target) in self._parameters for target in targets):
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
        hooks_of_all.clear()  # cleared in place, because the handles that remove hooks refer to these dictionaries
    try:
        yield
    finally:
        for name, value in hooks.items():
            setattr(optimizer, name, value)
        for hooks_of_all, value in shared:
            hooks_of_all.update(value)


def has_hooks(optimizer: Optimizer) -> bool:
    """Return whether an optimizer has step hooks, including the global hooks for all optimizers."""
    return bool(
        optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks or any(_HOOKS_OF_ALL_OPTIMIZERS)
    )


# The dictionaries of the hooks that PyTorch calls in the step of every optimizer.
_HOOKS_OF_ALL_OPTIMIZERS: Final[tuple[dict[int, Any], ...]] = (
    of_all._global_optimizer_pre_hooks,
    of_all._global_optimizer_post_hooks,
)


def all_or_nothing(optimizer: Optimizer, run: Callable[[], Any], is_makeshift: Callable[[torch.Tensor], bool]) -> None:
    """Run the step of an optimizer that is not from `torch.optim`. Restore everything if memory runs out.

    Args:
        optimizer: any optimizer.
        run: a function that runs the step, possibly through a gradient scaler.
        is_makeshift: a function that returns whether a tensor was allocated in host memory because it did not fit on
            the GPU.

    Raises:
        torch.OutOfMemoryError: the optimizer's state does not fit; parameters, state and parameter groups are as
            before.
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
                f"CUDA out of memory. The state of {type(optimizer).__name__} does not fit in addition to the "
                f"parameters: an allocation of {stray.nbytes:,} bytes failed"
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
