"""The blocks that PyTorch's caching allocator has handed out, and which of them an address lies in."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from ullage._errors import UsageError
from ullage.place import is_library, short_place


class Block(NamedTuple):
    """One block that is handed out."""

    device: int
    address: int
    size_bytes: int
    pool: tuple[int, int]
    """The pool of a CUDA graph, or one that the user has made; (0, 0) where it is in neither."""
    allocated_at: str | None

    @property
    def is_private(self) -> bool:
        """Whether it is in the pool of a CUDA graph, or one that the user has made."""
        return self.pool != (0, 0)


class Blocks:
    """All blocks of all devices, by address."""

    def __init__(self, blocks: list[Block]) -> None:
        self._blocks = sorted(blocks, key=lambda block: (block.device, block.address))
        # Addresses of different devices do not overlap: CUDA's are of one space.
        self._order = sorted(range(len(self._blocks)), key=lambda row: self._blocks[row].address)
        self._addresses = np.array([self._blocks[row].address for row in self._order], np.uint64)

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, row: int) -> Block:
        return self._blocks[row]

    def rows_at(self, addresses: list[int]) -> list[int]:
        """Return for each address the block that it lies in, -1 for one that lies in none."""
        if not self._blocks:
            return [-1] * len(addresses)
        found = np.searchsorted(self._addresses, np.array(addresses, np.uint64), side="right").tolist()
        rows = []
        for address, place in zip(addresses, found, strict=True):
            row = self._order[place - 1] if place else -1
            is_in = row >= 0 and address < self._blocks[row].address + self._blocks[row].size_bytes
            rows.append(row if is_in else -1)
        return rows


def live_blocks() -> Blocks:
    """Return the blocks that are handed out; nothing is initialised where CUDA has not been used.

    They are those whose bytes `torch.cuda.memory_allocated()` counts: not those that are freed and wait for a stream.

    Raises:
        UsageError: the process runs with an allocator that cannot be asked (`backend:cudaMallocAsync`).
    """
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return Blocks([])
    if torch.cuda.get_allocator_backend() != "native":
        raise UsageError(
            f"PyTorch runs with the allocator {torch.cuda.get_allocator_backend()}, which does not say what it has "
            "handed out; expected its own (leave backend: out of PYTORCH_ALLOC_CONF)"
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
                    Block(
                        device=segment["device"],
                        address=start,
                        size_bytes=block["size"],
                        pool=pool,
                        allocated_at=line_of(block.get("frames") or ()),
                    )
                )
    return Blocks(blocks)


def segments() -> list[dict[str, Any]]:
    """Return PyTorch's segments with their blocks, without the history where that can be left out (torch 2.11)."""
    try:
        found = torch.cuda.memory_snapshot(include_traces=False)
    except TypeError:
        found = torch.cuda.memory_snapshot()
    return list(found)


def line_of(frames: Any) -> str | None:
    """Return the innermost line of the user's."""
    for frame in frames:
        file = frame["filename"]
        if not _is_library(file):
            return _place(file, frame["line"])
    return None


_is_library = cache(is_library)
_place = cache(short_place)  # a program has few lines that allocate, and many blocks
