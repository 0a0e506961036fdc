"""Provide symmetric memory to a rank that runs without the other ranks.

PyTorch's asynchronous tensor parallelism (`enable_async_tensor_parallel` in torchtitan) copies through buffers that
every rank of a machine has mapped. Here, the rank's own buffer takes the place of the buffers of other ranks.
"""

import math
import weakref
from dataclasses import dataclass, field
from typing import Any, Final

import torch

_POINTER_BYTES: Final = 8


def stand_in_for_symmetric_memory() -> None:
    """Replace PyTorch's functions for symmetric memory so that they work without other ranks."""
    kind: Any = getattr(torch._C._distributed_c10d, "_SymmetricMemory", None)
    if kind is None or not hasattr(kind, "empty_strided_p2p"):
        return
    shared: dict[int, _Shared] = {}
    make = kind.empty_strided_p2p

    def empty_strided_p2p(size: Any, stride: Any, dtype: Any, device: Any, group_name: Any = None, *rest: Any) -> Any:
        made = make(size, stride, dtype, device, group_name, *rest)
        place = made.untyped_storage().data_ptr()
        shared[place] = _Shared(group_name)
        weakref.finalize(made, shared.pop, place, None)
        return made

    def rendezvous(tensor: torch.Tensor, group_name: Any = None) -> LoneSymmetricMemory | None:
        found = shared.get(tensor.untyped_storage().data_ptr())
        if found is None:
            return None  # PyTorch returns None too for a tensor that is not symmetric memory.
        name: Any = group_name or found.group_name
        group = torch._C._distributed_c10d._resolve_process_group(name)
        if not found.lists:
            count = _POINTER_BYTES * group.size()
            found.lists += [torch.empty(count, dtype=torch.uint8, device=tensor.device) for _ in range(2)]
        return LoneSymmetricMemory(tensor, group.rank(), group.size())

    kind.empty_strided_p2p = staticmethod(empty_strided_p2p)
    kind.rendezvous = staticmethod(rendezvous)


@dataclass(slots=True)
class _Shared:
    group_name: Any
    """The process group of the buffer, or None if the script named no group."""
    lists: list[torch.Tensor] = field(default_factory=list)
    """The buffer and signal addresses of all ranks, which PyTorch keeps on the GPU."""


class LoneSymmetricMemory:
    """A replacement for PyTorch's handle to symmetric memory."""

    def __init__(self, tensor: torch.Tensor, rank: int, world_size: int) -> None:
        self._buffer = tensor
        self.rank = rank
        self.world_size = world_size

    def get_buffer(self, rank: int, sizes: Any, dtype: torch.dtype, storage_offset: int = 0) -> torch.Tensor:
        """Return the buffer of this rank in place of any other rank's buffer."""
        flat = torch.empty(0, dtype=dtype, device=self._buffer.device)
        return flat.set_(self._buffer.untyped_storage(), storage_offset, (math.prod(sizes),), (1,)).view(sizes)

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Do nothing, because no other rank reaches the barrier."""

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Do nothing, because no other rank waits for the signal."""

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Return without waiting, because no other rank is running that could send a signal."""
