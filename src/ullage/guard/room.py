"""Making room on the devices that a model is on, after an attempt has failed; never in a step that goes well."""

import gc
from collections.abc import Iterable
from typing import Any, Final

import torch

from ullage.guard.insist import Insisting
from ullage.message.message import Message
from ullage.message.wording import Kind

_OUTSIDE: Final = (Kind.DRIVER, Kind.LIBRARY)
"""Who asks the driver itself, and gets nothing of what the allocator keeps for later."""


class Room:
    """The devices of a model, whose memory can be looked at and made free."""

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
        """Free what only cycles of references hold, and what backward's threads and other streams have done with since.

        A backward that fails leaves the nodes that it has not come to, with gradients and saved tensors, in the queues
        of its threads until the next one passes there: one does that computes nothing.
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
        """Give the driver what the allocators keep for later."""
        for backend in self._backends.values():
            backend.empty_cache()

    def insisting(self) -> Insisting:
        """Have each operation inside run to its end, which those that put something back have to."""
        return Insisting((lambda _: self.collect(), lambda _: self.empty_cache()))

    def is_in_pieces(self, message: Message) -> bool:
        """Tell whether giving the cache back can let a request through that failed.

        Memory was there, in pieces too small: a second attempt then begins with segments that fit, not with what other
        shapes have left of theirs. Or somebody beside the allocator asked the driver, which has what is given back.
        """
        if message.kind in _OUTSIDE:
            return not self.is_on_host
        requested, unused = message.requested_bytes, message.unallocated_bytes
        return requested is not None and unused is not None and unused >= requested
