"""The holders of device memory: one row each; the rows sum to what the allocator has handed out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import overload

from ullage.base.public import public
from ullage.base.units import text_of_bytes


class HolderKind(StrEnum):
    """The kind of object that holds a block; if a block has several holders, the first of these kinds is reported."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER_STATE = "optimizer state"
    GRADIENT = "gradient"
    NOTEBOOK = "notebook"
    """A result of an earlier notebook cell that IPython keeps: `Out`, `_`, `__`, `___`."""
    LOCAL = "local"
    """A local variable of a running function."""
    GLOBAL = "global"
    """A global variable of one of the user's modules."""
    TRACEBACK = "traceback"
    """The frames of an exception that is still referenced."""
    GRAPH = "graph"
    """A tensor that forward saved for a backward that has not run, kept alive by a tensor with a `grad_fn`."""
    LIBRARY = "library"
    """A variable of a library's module."""
    RUNNING = "running"
    """An expression that is being evaluated, another thread, or C code: no variable refers to it."""
    GARBAGE = "garbage"
    """A reference cycle that no variable leads to; `gc.collect()` frees it."""
    WORKSPACE = "workspace"
    """A workspace of cuBLAS, recognised by its size."""
    POOL = "private pool"
    """A private pool of a CUDA graph, or of a `torch.cuda.MemPool`."""
    SMALLER = "smaller"
    """All holders below `min_bytes`, in one row."""
    UNKNOWN = "unknown"
    """A block that nothing in Python leads to."""


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One holder of device memory: blocks that are kept alive by the same kind of reference."""

    bytes: int
    """The size of the blocks as the allocator counts it, rounded up."""
    path: str
    """The path from a variable to the object that holds the memory: "train.py:41 global 'losses' -> list[*]"."""
    kind: HolderKind
    """The kind of object that holds the memory."""
    blocks: int = 1
    """The number of blocks."""
    device: int = 0
    """The number of the CUDA device."""
    allocated_at: str | None = None
    """The user's line that allocated the largest of the blocks; None unless PyTorch records memory history."""

    def __str__(self) -> str:
        many = f", {self.blocks} blocks" if self.blocks > 1 else ""
        where = f", allocated at {self.allocated_at}" if self.allocated_at else ""
        return f"{self.path} ({text_of_bytes(self.bytes)}{many}{where})"


@public
@dataclass(frozen=True, slots=True)
class Holdings(Sequence[Holding]):
    """The result of `ullage.owners`: the holders of all memory that PyTorch's allocator has handed out."""

    rows: tuple[Holding, ...]
    """The holders, the largest first."""

    @property
    def total_bytes(self) -> int:
        """The sum of all rows: `torch.cuda.memory_allocated()` over all devices."""
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
            return "Nothing is held on any device."
        lines = [f"{text_of_bytes(self.total_bytes)} are held:"]
        for row in self.rows:
            many = f"  ({row.blocks} blocks)" if row.blocks > 1 else ""
            where = f"  allocated at {row.allocated_at}" if row.allocated_at else ""
            lines.append(f"{text_of_bytes(row.bytes):>12}  {row.kind:<15}  {row.path}{many}{where}")
        return "\n".join(lines)
