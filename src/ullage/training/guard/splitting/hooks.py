"""Finds hooks on gradients that may act on each part of a split batch, where they would act once on the whole batch."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_OWN: Final = ("torch.", "ullage.", "deepspeed.", "accelerate.", "lightning.", "pytorch_lightning.")
"""The beginnings of the names of modules whose hooks expect several backward passes for a step."""


class HookNotes(TorchFunctionMode):
    """A mode that notes whether a computation registers hooks on the gradients of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.has_registered = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.register_hook and not _is_own(args[1] if len(args) > 1 else None):
            self.has_registered = True
        return func(*args, **(kwargs or {}))


def hooked_parameter(modules: Sequence[nn.Module], *, is_vouched: bool) -> str | None:
    """Return the name of a parameter with a hook that may change its gradient in each part. None if there is none.

    Args:
        modules: the modules that are trained.
        is_vouched: whether the user says that the items are independent. Then only hooks that run after a gradient was
            accumulated count, because they act on the sum of the parts so far, or step an optimizer.
    """
    for name, parameter in _named(modules):
        hooks: list[Mapping[int, Any] | None] = [getattr(parameter, "_post_accumulate_grad_hooks", None)]
        if not is_vouched:
            hooks.append(parameter._backward_hooks)
        if any(not _is_own(hook) for some in hooks for hook in (some or {}).values()):
            return name
    return None


def _named(modules: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    for module in modules:
        yield from module.named_parameters()


def _is_own(hook: Any) -> bool:
    while isinstance(hook, functools.partial):
        hook = hook.func
    return (getattr(hook, "__module__", None) or "").startswith(_OWN)
