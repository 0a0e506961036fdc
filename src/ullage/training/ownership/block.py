"""Lists the allocated blocks of PyTorch's caching allocator, and finds the block at an address."""

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from ullage.base.errors import UsageError
from ullage.recorded.frame import TOP_LEVEL, Frame, short_line, users_frame


class AllocatedBlock(NamedTuple):
    """One allocated block of PyTorch's caching allocator."""

    device: int
    address: int
    size_bytes: int
    pool: tuple[int, int]
    """The ID of the private pool that contains the block, for example of a CUDA graph. It is (0, 0) outside private
    pools.
    """
    allocated_at: str | None


class AllocatedBlocks:
    """The allocated blocks of all devices, sorted by device and address."""

    def __init__(self, blocks: list[AllocatedBlock]) -> None:
        self._blocks = sorted(blocks, key=lambda block: (block.device, block.address))
        # Addresses on different devices do not overlap: CUDA has one address space for all of them.
        self._order = sorted(range(len(self._blocks)), key=lambda row: self._blocks[row].address)
        self._addresses = np.array([self._blocks[row].address for row in self._order], np.uint64)

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, row: int) -> AllocatedBlock:
        return self._blocks[row]

    def beginning_at(self, addresses: Iterable[int]) -> "AllocatedBlocks":
        """Return the blocks that begin at these addresses."""
        sought = set(addresses)
        return AllocatedBlocks([block for block in self._blocks if block.address in sought])

    def rows_at(self, addresses: list[int]) -> list[int]:
        """Return the index of the block that contains each address, or -1 if there is none."""
        if not self._blocks:
            return [-1] * len(addresses)
        found = np.searchsorted(self._addresses, np.array(addresses, np.uint64), side="right").tolist()
        rows = []
        for address, place in zip(addresses, found, strict=True):
            row = self._order[place - 1] if place else -1
            is_in = row >= 0 and address < self._blocks[row].address + self._blocks[row].size_bytes
            rows.append(row if is_in else -1)
        return rows


def live_blocks() -> AllocatedBlocks:
    """Return the allocated blocks of all devices, without initialising CUDA.

    These are the blocks that `torch.cuda.memory_allocated()` counts.

    Raises:
        UsageError: PyTorch runs with an allocator that cannot list its blocks (`backend:cudaMallocAsync`).
    """
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return AllocatedBlocks([])
    if torch.cuda.get_allocator_backend() != "native":
        raise UsageError(
            f"PyTorch runs with the allocator {torch.cuda.get_allocator_backend()}, which cannot list its blocks; "
            "expected PyTorch's native allocator (remove backend: from PYTORCH_ALLOC_CONF)"
        )
    blocks = []
    for segment in segments():
        address = segment["address"]
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        for block in segment["blocks"]:
            start = block.get("address", address)
            address = start + block["size"]
            if block["state"] == "active_allocated":
                blocks.append(
                    AllocatedBlock(
                        device=segment["device"],
                        address=start,
                        size_bytes=block["size"],
                        pool=pool,
                        allocated_at=line_of(block.get("frames") or ()),
                    )
                )
    return AllocatedBlocks(blocks)


def segments() -> list[dict[str, Any]]:
    """Return PyTorch's segments with their blocks. The allocation history is slow to read and left out if possible."""
    try:
        found = torch.cuda.memory_snapshot(include_traces=False)
    except TypeError:
        found = torch.cuda.memory_snapshot()
    return list(found)


def line_of(frames: Any) -> str | None:
    """Return the file and line of the innermost stack frame in the user's code, or None."""
    frame = users_frame([_frame(found["name"], found["filename"], found["line"]) for found in frames])
    return _line(frame) if frame is not None else None


# Both are cached because a program has many blocks but few lines that allocate them.
@cache
def _frame(name: str, file: str, line: int) -> Frame:
    return Frame(name, file, line, name == TOP_LEVEL)


_line = cache(short_line)
