"""What holds device memory: one row for each holder, and the rows sum to what the allocator has handed out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ullage._units import text_of_bytes


class Kind(StrEnum):
    """What holds a block of memory; where a block has several holders, the first of these names it."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER_STATE = "optimizer state"
    GRADIENT = "gradient"
    NOTEBOOK = "notebook"
    """What IPython keeps of earlier cells: `Out`, `_`, `__`, `___`."""
    LOCAL = "local"
    """A variable of a function that runs."""
    GLOBAL = "global"
    """A variable of a module."""
    TRACEBACK = "traceback"
    """The frames of an exception that somebody holds."""
    GRAPH = "graph"
    """What forward saved for a backward that has not run, held by a tensor with a `grad_fn`."""
    LIBRARY = "library"
    """A variable of a module that is not the user's."""
    RUNNING = "running"
    """An expression that is being evaluated, another thread, or C code: no name leads to it."""
    GARBAGE = "garbage"
    """Only a cycle of references, which `gc.collect()` frees."""
    WORKSPACE = "workspace"
    """Of cuBLAS, told by its size."""
    POOL = "private pool"
    """Of a CUDA graph or a `torch.cuda.MemPool`."""
    SMALLER = "smaller"
    """All that is smaller than was asked for."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Blocks of memory that are held in one way."""

    bytes: int
    """As the allocator counts them: rounded up to its blocks."""
    path: str
    """From a variable that a person knows to what holds the memory."""
    kind: Kind
    blocks: int = 1
    device: int = 0
    allocated_at: str | None = None
    """The user's line that asked for the largest of the blocks, where PyTorch records memory history."""

    def __str__(self) -> str:
        many = f", {self.blocks} blocks" if self.blocks > 1 else ""
        where = f", allocated at {self.allocated_at}" if self.allocated_at else ""
        return f"{self.path} ({text_of_bytes(self.bytes)}{many}{where})"


@dataclass(frozen=True, slots=True)
class Holdings(Sequence[Holding]):
    """The holders of all memory that PyTorch's allocator has handed out, the largest first."""

    rows: tuple[Holding, ...]

    @property
    def total_bytes(self) -> int:
        """What `torch.cuda.memory_allocated()` says, over all devices."""
        return sum(row.bytes for row in self.rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # an overload for slices says nothing more
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
