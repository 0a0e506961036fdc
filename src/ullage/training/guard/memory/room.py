"""Frees memory on the devices of a model after a step has run out of memory."""

import gc
from collections.abc import Iterable
from typing import Any, Final

import torch

from ullage.recorded.message.message import Message
from ullage.recorded.message.wording import MessageKind
from ullage.training.guard.memory.retry_operations import RetryingMode

# The kinds of out-of-memory errors that come from code that calls the driver directly. Such code cannot use the memory
# in PyTorch's cache.
_OUTSIDE: Final = (MessageKind.DRIVER, MessageKind.LIBRARY)


class Room:
    """The devices of a model, with methods that free memory on them."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self.devices = tuple(sorted(set(devices), key=str))
        self._backends: dict[str, Any] = {
            device.type: backend
            for device in self.devices
            if (backend := getattr(torch, device.type, None)) is not None and hasattr(backend, "empty_cache")
        }
        # Tensors without elements need no device memory.
        leaves = [torch.empty(0, device=device) for device in {torch.device("cpu"), *self.devices}]
        self._graphs = [(leaf.detach().requires_grad_(), leaf) for leaf in leaves]

    @property
    def is_on_host(self) -> bool:
        """Whether all devices of the model are CPUs."""
        return not self._backends

    def collect(self) -> None:
        """Free memory of tensors that are no longer needed but still referenced.

        Such tensors are in reference cycles, or are held by autograd's threads or other streams. After a failed
        backward, autograd's threads hold tensors until their next backward. So this method runs a small backward first.
        """
        for leaf, gradient in self._graphs:
            torch.autograd.grad(leaf, leaf, gradient)
        torch.clear_autocast_cache()
        gc.collect()
        for device in self.devices:
            if device.type in self._backends:
                one = (
                    [device] if device.index is not None and device.type in ("cuda", "xpu") else []
                )  # MPS has a single device
                self._backends[device.type].synchronize(*one)

    def empty_cache(self) -> None:
        """Return cached memory to the driver, as `torch.cuda.empty_cache()` does."""
        for backend in self._backends.values():
            backend.empty_cache()

    def retrying(self) -> RetryingMode:
        """Return a mode in which PyTorch operations are retried if they run out of memory."""
        return RetryingMode((lambda _: self.collect(), lambda _: self.empty_cache()))

    def is_in_pieces(self, message: Message) -> bool:
        """Return whether a failed request may succeed after the cache has been emptied.

        It may if enough memory was cached, but in pieces that were too small. It may also if a library requested memory
        from the driver directly.
        """
        if message.kind in _OUTSIDE:
            return not self.is_on_host
        requested, unused = message.requested_bytes, message.unallocated_bytes
        return requested is not None and unused is not None and unused >= requested
