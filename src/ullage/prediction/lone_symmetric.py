"""Symmetric memory of a rank that runs alone: what it would map of the other ranks is its own.

PyTorch's tensor parallelism that overlaps with its communication (`enable_async_tensor_parallel` of torchtitan) copies
by buffers that every rank of a machine has mapped. The driver makes them, outside the caching allocator, and the ranks
hand each other their handles over sockets; only that meeting is replaced here.
"""

from typing import Any, Final

import torch

_POINTER_BYTES: Final = 8


def stand_in_for_symmetric_memory() -> None:
    """Make buffers that ranks share without the other ranks."""
    kind = getattr(torch._C._distributed_c10d, "_SymmetricMemory", None)
    if kind is None or not hasattr(kind, "empty_strided_p2p"):
        return
    groups: dict[int, str | None] = {}
    handles: dict[tuple[int, str], LoneSymmetricMemory] = {}
    make = kind.empty_strided_p2p

    def empty_strided_p2p(size: Any, stride: Any, dtype: Any, device: Any, group_name: Any = None, *rest: Any) -> Any:
        made = make(size, stride, dtype, device, group_name, *rest)
        groups[made.untyped_storage().data_ptr()] = group_name
        return made

    def rendezvous(tensor: torch.Tensor, group_name: str | None = None) -> LoneSymmetricMemory | None:
        place = tensor.untyped_storage().data_ptr()
        name = group_name or groups.get(place)
        if place not in groups or name is None:
            return None  # as PyTorch answers where a tensor was allocated otherwise
        if (place, name) not in handles:
            handles[place, name] = LoneSymmetricMemory(tensor, name)
        return handles[place, name]

    kind.empty_strided_p2p = staticmethod(empty_strided_p2p)
    kind.rendezvous = staticmethod(rendezvous)


class LoneSymmetricMemory:
    """Takes the place of the handle with which a rank reaches a buffer on each card of its group."""

    def __init__(self, tensor: torch.Tensor, group_name: str) -> None:
        group = torch.distributed.distributed_c10d._resolve_process_group(group_name)
        self.rank = group.rank()
        self.world_size = group.size()
        self._buffer = tensor
        # PyTorch's keeps two lists of addresses on the card, of its caching allocator.
        self._lists = [
            torch.empty(_POINTER_BYTES * self.world_size, dtype=torch.uint8, device=tensor.device) for _ in range(2)
        ]

    def get_buffer(self, rank: int, sizes: Any, dtype: torch.dtype, storage_offset: int = 0) -> torch.Tensor:
        """Return this rank's buffer, whose ever was asked for."""
        return torch.empty(0, dtype=dtype, device=self._buffer.device).set_(
            self._buffer.untyped_storage(), storage_offset, sizes
        )

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Do nothing: nobody comes."""

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Do nothing: nobody waits for it."""

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Do nothing: nobody sends it."""
