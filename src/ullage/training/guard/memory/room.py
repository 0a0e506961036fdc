"""Freeing memory on a model's devices after an attempt has failed; never in a step that succeeds."""

import gc
from collections.abc import Iterable
from typing import Any, Final

import torch

from ullage.recorded.message.message import Message
from ullage.recorded.message.wording import MessageKind
from ullage.training.guard.memory.retry_operations import RetryingMode

_OUTSIDE: Final = (MessageKind.DRIVER, MessageKind.LIBRARY)
"""Kinds of errors of code that asks the driver itself, which cannot use memory that PyTorch's allocator caches."""


class Room:
    """The devices of a model, on which memory can be freed."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self.devices = tuple(sorted(set(devices), key=str))
        self._backends: dict[str, Any] = {
            device.type: backend
            for device in self.devices
            if (backend := getattr(torch, device.type, None)) is not None and hasattr(backend, "empty_cache")
        }
        # Without elements, and so without memory.
        leaves = [torch.empty(0, device=device) for device in {torch.device("cpu"), *self.devices}]
        self._graphs = [(leaf.detach().requires_grad_(), leaf) for leaf in leaves]

    @property
    def is_on_host(self) -> bool:
        """Whether the model is on the CPU alone."""
        return not self._backends

    def collect(self) -> None:
        """Free what only reference cycles, autograd's threads or other streams still hold.

        A backward that fails leaves the nodes that it has not reached, with gradients and saved tensors, in the queues
        of its threads until the next backward runs there; this runs one that computes nothing.
        """
        for leaf, gradient in self._graphs:
            torch.autograd.grad(leaf, leaf, gradient)
        torch.clear_autocast_cache()
        gc.collect()
        for device in self.devices:
            if device.type in self._backends:
                one = [device] if device.index is not None and device.type in ("cuda", "xpu") else []  # Apple's has one
                self._backends[device.type].synchronize(*one)

    def empty_cache(self) -> None:
        """Give cached memory back to the driver, as `torch.cuda.empty_cache()` does."""
        for backend in self._backends.values():
            backend.empty_cache()

    def retrying(self) -> RetryingMode:
        """Return a mode that retries operations that run out of memory; for code that restores values."""
        return RetryingMode((lambda _: self.collect(), lambda _: self.empty_cache()))

    def is_in_pieces(self, message: Message) -> bool:
        """Tell whether emptying the cache can let a request through that failed.

        Either enough cached memory was there, in pieces too small: after `empty_cache` the retry gets segments that fit
        its shapes. Or code beside the allocator asked the driver, which then has what the cache gave back.
        """
        if message.kind in _OUTSIDE:
            return not self.is_on_host
        requested, unused = message.requested_bytes, message.unallocated_bytes
        return requested is not None and unused is not None and unused >= requested
