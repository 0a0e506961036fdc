"""Reduces the memory of forward and backward with activation checkpointing and with offloading of saved tensors."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from fnmatch import fnmatchcase
from typing import Any, Final

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from ullage.base.errors import UsageError
from ullage.training.guard.retries.plan import BatchPlan
from ullage.training.guard.state.copies import SMALL_BYTES, can_be_copied

_WORTH_MOVING_BYTES: Final = 1 << 20


class MemorySavers:
    """Enables activation checkpointing and offloading for forward and backward."""

    def __init__(self, modules: Sequence[nn.Module], names: Sequence[str], pinned_bytes: int) -> None:
        self._modules = modules
        self._pinned_bytes = pinned_bytes
        self.checkpointed = _named(modules, names)

    @contextmanager
    def around(self, plan: BatchPlan) -> Iterator[None]:
        with ExitStack() as stack:
            if plan.checkpoint:
                stack.enter_context(_computed_again(self.checkpointed))
            if plan.offload:
                stack.enter_context(_kept_on_host(self._modules, self._pinned_bytes))
            yield


def _named(modules: Sequence[nn.Module], names: Sequence[str]) -> list[nn.Module]:
    # A module inside another matching module is left out. A star matches exactly one level of the module tree, as in
    # file paths.
    found: list[nn.Module] = []
    for pattern in [names] if isinstance(names, str) else names:
        meant = [child for module in modules for name, child in module.named_modules() if _is_meant(name, pattern)]
        if not meant:
            known = ", ".join(name for module in modules for name, _ in module.named_children())
            raise UsageError(
                f"checkpoint={pattern!r} matches no module of the model; expected names as in named_modules(), such as "
                f"'layers.*'; the top-level modules are: {known or 'none'}"
            )
        found += meant
    inner = {id(child) for one in found for child in one.modules() if child is not one}
    return [one for one in dict.fromkeys(found) if id(one) not in inner]


def _is_meant(name: str, pattern: str) -> bool:
    levels, patterns = name.split("."), pattern.split(".")
    return len(levels) == len(patterns) and all(map(fnmatchcase, levels, patterns))


@contextmanager
def _computed_again(modules: Sequence[nn.Module]) -> Iterator[None]:
    def wrapped(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
            return nullcontext(), _buffers_kept(module)

        def run(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not any(
                True for _ in module.buffers()
            ):  # torch.compile supports no other context functions
                return checkpoint(forward, *args, use_reentrant=False, **kwargs)
            return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

        return run

    own = [module for module in modules if "forward" in vars(module)]
    before = {id(module): vars(module)["forward"] for module in own}
    for module in modules:
        module.forward = wrapped(module, module.forward)
    try:
        yield
    finally:
        for module in modules:
            del module.forward
            if id(module) in before:
                module.forward = before[id(module)]


@contextmanager
def _buffers_kept(module: nn.Module) -> Iterator[None]:
    # Backward computes forward again, which must not update BatchNorm's statistics twice. Restoring the values
    # afterwards would count as a change of tensors that autograd has saved.
    places = [(child._buffers, name, tensor) for child in module.modules() for name, tensor in child._buffers.items()]
    try:
        for buffers, name, tensor in places:
            if tensor is not None and can_be_copied(tensor) and tensor.nbytes <= SMALL_BYTES:
                buffers[name] = tensor.clone()
        yield
    finally:
        for buffers, name, tensor in places:
            buffers[name] = tensor


@contextmanager
def _kept_on_host(modules: Sequence[nn.Module], pinned_bytes: int) -> Iterator[None]:
    # parameters stay on their device
    stay = {parameter.untyped_storage().data_ptr() for module in modules for parameter in module.parameters()}
    left = pinned_bytes

    def pack(tensor: torch.Tensor) -> Any:
        nonlocal left
        moves = (
            tensor.device.type != "cpu"
            and tensor.layout is torch.strided
            and tensor.nbytes >= _WORTH_MOVING_BYTES
            and tensor.untyped_storage().data_ptr() not in stay
        )
        if not moves:
            return tensor
        pin = tensor.nbytes <= left
        kept = torch.empty_like(
            tensor, device="cpu", requires_grad=False, pin_memory=pin
        )  # keeps the strides of the tensor
        left -= tensor.nbytes if pin else 0
        kept.copy_(tensor)
        return tensor.device, kept

    def unpack(packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        device, kept = packed
        moved: torch.Tensor = kept.to(device)
        return moved

    with saved_tensors_hooks(pack, unpack):
        yield
