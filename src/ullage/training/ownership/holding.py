"""The report of `ullage.owners`. Its rows sum to the memory that PyTorch has allocated."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import overload

from ullage.base.public import public
from ullage.base.units import text_of_bytes


class HolderKind(StrEnum):
    """The kind of object that holds memory.

    If several objects hold a block, ullage reports the kind that comes first in this enum.
    """

    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER_STATE = "optimizer state"
    GRADIENT = "gradient"
    NOTEBOOK = "notebook"
    """The result of an earlier notebook cell, which IPython stores in `Out`, `_`, `__` or `___`."""
    LOCAL = "local"
    """A local variable of a running function."""
    GLOBAL = "global"
    """A global variable of one of the user's modules."""
    TRACEBACK = "traceback"
    """The stack frames of an exception that a variable refers to."""
    GRAPH = "graph"
    """A tensor that an autograd graph has saved for backward."""
    LIBRARY = "library"
    """A variable of a library's module."""
    RUNNING = "running"
    """Memory that a running expression, another thread, or C code holds. No variable refers to it."""
    GARBAGE = "garbage"
    """A reference cycle that no variable refers to. `gc.collect()` frees it."""
    WORKSPACE = "workspace"
    """A cuBLAS workspace, recognised by its size."""
    POOL = "private pool"
    """The private pool of a CUDA graph or of a `torch.cuda.MemPool`."""
    SMALLER = "smaller"
    """All holders that are smaller than `min_bytes`, in one row."""
    UNKNOWN = "unknown"
    """A memory block that no Python object refers to."""


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One row of `ullage.owners`: an object and the memory that it holds."""

    bytes: int
    """The total size of the blocks in bytes, as rounded up by the allocator."""
    path: str
    """The path from a variable to the object, such as "train.py:41 global 'losses' -> list[*]"."""
    kind: HolderKind
    """The kind of object that holds the memory."""
    blocks: int = 1
    device: int = 0
    """The index of the CUDA device."""
    allocated_at: str | None = None
    """The source line that allocated the largest block. None if PyTorch does not record memory history."""

    def __str__(self) -> str:
        many = f", {self.blocks} blocks" if self.blocks > 1 else ""
        where = f", allocated at {self.allocated_at}" if self.allocated_at else ""
        return f"{self.path} ({text_of_bytes(self.bytes)}{many}{where})"


@public
@dataclass(frozen=True, slots=True)
class Holdings(Sequence[Holding]):
    """The result of `ullage.owners`: the objects that hold allocated GPU memory."""

    rows: tuple[Holding, ...]
    """The objects that hold memory, the largest first."""

    @property
    def total_bytes(self) -> int:
        """The total allocated memory of all rows in bytes, equal to `torch.cuda.memory_allocated()`."""
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
