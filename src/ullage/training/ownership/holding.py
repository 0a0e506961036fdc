"""The report of what holds device memory. It has one row for each holder, and the rows sum to the memory that PyTorch
has allocated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import overload

from ullage.base.public import public
from ullage.base.units import text_of_bytes


class HolderKind(StrEnum):
    """The kind of object that holds a memory block. If several objects hold a block, the kind that this class lists
    first is reported.
    """

    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER_STATE = "optimizer state"
    GRADIENT = "gradient"
    NOTEBOOK = "notebook"
    """The result of an earlier notebook cell. IPython stores it in `Out`, `_`, `__` or `___`."""
    LOCAL = "local"
    """A local variable of a running function."""
    GLOBAL = "global"
    """A global variable of one of the user's modules."""
    TRACEBACK = "traceback"
    """The stack frames of an exception to which a variable still refers."""
    GRAPH = "graph"
    """A tensor that forward saved for a backward that has not run. A tensor with a `grad_fn` keeps it alive."""
    LIBRARY = "library"
    """A variable of a library's module."""
    RUNNING = "running"
    """Memory that a running expression, another thread, or C code holds. No variable refers to it."""
    GARBAGE = "garbage"
    """A reference cycle to which no variable refers. `gc.collect()` frees it."""
    WORKSPACE = "workspace"
    """A cuBLAS workspace, recognised by its size."""
    POOL = "private pool"
    """The private pool of a CUDA graph or of a `torch.cuda.MemPool`."""
    SMALLER = "smaller"
    """One row for all holders that are smaller than the option `min_bytes`."""
    UNKNOWN = "unknown"
    """A memory block to which no Python object refers."""


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One holder of device memory: blocks that are kept allocated by the same kind of reference."""

    bytes: int
    """The total size of the holder's blocks in bytes. The allocator rounds block sizes up."""
    path: str
    """The path from a variable to the object that holds the memory, such as "train.py:41 global 'losses' ->
    list[*]".
    """
    kind: HolderKind
    """The kind of object that holds the memory."""
    blocks: int = 1
    device: int = 0
    """The index of the CUDA device."""
    allocated_at: str | None = None
    """The line of the user's code that allocated the holder's largest block. None if PyTorch does not record memory
    history.
    """

    def __str__(self) -> str:
        many = f", {self.blocks} blocks" if self.blocks > 1 else ""
        where = f", allocated at {self.allocated_at}" if self.allocated_at else ""
        return f"{self.path} ({text_of_bytes(self.bytes)}{many}{where})"


@public
@dataclass(frozen=True, slots=True)
class Holdings(Sequence[Holding]):
    """The result of `ullage.owners`: what holds the memory that PyTorch's allocator has allocated."""

    rows: tuple[Holding, ...]
    """The holders of memory. The largest comes first."""

    @property
    def total_bytes(self) -> int:
        """The sum of all rows in bytes. It equals `torch.cuda.memory_allocated()`, summed over all devices."""
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
