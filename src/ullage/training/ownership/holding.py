"""The report of what holds device memory, with one row for each holder. The rows sum to the memory that PyTorch's
allocator has allocated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import overload

from ullage.base.public import public
from ullage.base.units import text_of_bytes


class HolderKind(StrEnum):
    """The kind of object that holds a memory block. If a block has several holders, the kind that is listed first here
    is reported.
    """

    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER_STATE = "optimizer state"
    GRADIENT = "gradient"
    NOTEBOOK = "notebook"
    """A result of an earlier notebook cell that IPython stores in `Out`, `_`, `__` or `___`."""
    LOCAL = "local"
    """A local variable of a running function."""
    GLOBAL = "global"
    """A global variable of one of the user's modules."""
    TRACEBACK = "traceback"
    """The stack frames of an exception that a variable still refers to."""
    GRAPH = "graph"
    """A tensor that the forward pass saved for a backward pass that has not run; a tensor with a `grad_fn` keeps it
    alive.
    """
    LIBRARY = "library"
    """A variable of a library's module."""
    RUNNING = "running"
    """Memory that an expression in evaluation, another thread, or C code holds. No variable refers to it."""
    GARBAGE = "garbage"
    """A reference cycle to which no variable refers. `gc.collect()` frees it."""
    WORKSPACE = "workspace"
    """A cuBLAS workspace, recognised by its size."""
    POOL = "private pool"
    """The private pool of a CUDA graph or of a `torch.cuda.MemPool`."""
    SMALLER = "smaller"
    """All holders that are smaller than the option `min_bytes`, together in one row."""
    UNKNOWN = "unknown"
    """A memory block to which no Python object refers."""


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One holder of device memory: the blocks that the same kind of reference keeps allocated."""

    bytes: int
    """The total size of the holder's blocks in bytes, as the allocator counts it, that is, after rounding up."""
    path: str
    """The path from a variable to the object that holds the memory: "train.py:41 global 'losses' -> list[*]"."""
    kind: HolderKind
    """The kind of object that holds the memory."""
    blocks: int = 1
    """The number of memory blocks that the holder keeps allocated."""
    device: int = 0
    """The index of the CUDA device."""
    allocated_at: str | None = None
    """The line of the user's code that allocated the holder's largest block; None unless PyTorch records memory
    history.
    """

    def __str__(self) -> str:
        many = f", {self.blocks} blocks" if self.blocks > 1 else ""
        where = f", allocated at {self.allocated_at}" if self.allocated_at else ""
        return f"{self.path} ({text_of_bytes(self.bytes)}{many}{where})"


@public
@dataclass(frozen=True, slots=True)
class Holdings(Sequence[Holding]):
    """The result of `ullage.owners`: the holders of all memory that PyTorch's allocator has allocated."""

    rows: tuple[Holding, ...]
    """The holders of memory, sorted by size, the largest first."""

    @property
    def total_bytes(self) -> int:
        """The sum of all rows in bytes. It is equal to the sum of `torch.cuda.memory_allocated()` over all devices."""
        return sum(row.bytes for row in self.rows)

    @overload
    def __getitem__(self, index: int) -> Holding: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Holding, ...]: ...
    def __getitem__(self, index: int | slice) -> Holding | tuple[Holding, ...]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Holding]:
        return iter(self.rows)

    def __str__(self) -> str:
        if not self.rows:
            return "No device memory is allocated."
        lines = [f"{text_of_bytes(self.total_bytes)} are allocated:"]
        for row in self.rows:
            many = f"  ({row.blocks} blocks)" if row.blocks > 1 else ""
            where = f"  allocated at {row.allocated_at}" if row.allocated_at else ""
            lines.append(f"{text_of_bytes(row.bytes):>12}  {row.kind:<15}  {row.path}{many}{where}")
        return "\n".join(lines)
