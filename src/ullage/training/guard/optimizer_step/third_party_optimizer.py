"""The first step of an optimizer that is not PyTorch's: it is applied completely or not at all.

There is no dry run of it, because what it does outside of PyTorch's operations cannot be seen. So its parameters and
its state are copied to the host once, before the step that creates its state, and restored if that does not fit.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


def all_or_nothing(optimizer: Optimizer, run: Callable[[], Any], is_makeshift: Callable[[torch.Tensor], bool]) -> None:
    """Run an optimizer's step; restore everything if its state does not fit.

    Args:
        optimizer: any optimizer.
        run: its step, perhaps through a gradient scaler.
        is_makeshift: tells whether a tensor was allocated on the host because there was no room on the card.

    Raises:
        torch.OutOfMemoryError: its state does not fit; parameters, state and groups are as before.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    values = [(parameter, parameter.detach().to("cpu", copy=True)) for parameter in parameters]
    state = {parameter: dict(own) for parameter, own in optimizer.state.items()}
    tensors = {id(value): value for own in state.values() for value in own.values() if isinstance(value, torch.Tensor)}
    values += [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in tensors.values()]
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
