"""A history: what was recorded of an allocator, as columns. It knows no file format, and nothing of what it means."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from ullage.program import Column


class Action(IntEnum):
    """What a trace entry records; the names are PyTorch's."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    SNAPSHOT = 8
    OTHER = 9


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    name: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """Every stack that was recorded, each once: stack n is `frames[starts[n]:starts[n + 1]]`, rows of `table`."""

    starts: Column
    frames: Column
    table: tuple[Frame, ...]

    def frames_of(self, stack: int) -> tuple[Frame, ...]:
        """Return the frames of a stack, innermost first; none for -1."""
        if stack < 0:
            return ()
        return tuple(self.table[row] for row in self.frames[self.starts[stack] : self.starts[stack + 1]].tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of a segment when the snapshot was taken; sizes in bytes."""

    address: int
    size: int
    requested: int
    """What was asked for; of a block that is not allocated what its last life asked for."""
    state: str
    """active_allocated, active_pending_free or inactive."""
    stack: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment when the snapshot was taken."""

    address: int
    size: int
    stream: int
    is_large: bool
    is_expandable: bool
    pool: int
    """The private pool's number; 0: the default pool."""
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A range that the program named: an optimizer's step, or the user's own."""

    name: str
    stage: str
    time_us: int


def _nothing() -> Column:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What was put on trace entries: columns as long as the trace, or empty where no entry has any."""

    metadata: Column = field(default_factory=_nothing)
    """The user's own (torch.cuda.memory._set_memory_metadata), an index of `texts`; -1: none."""
    context: Column = field(default_factory=_nothing)
    """The compiled region, an index of `texts`; -1: none."""
    pool: Column = field(default_factory=_nothing)
    """The private pool's number; 0: the default pool."""
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What one device's allocator recorded: trace entries as columns of equal length, and the state at the end."""

    device: int
    action: Column
    address: Column
    """Of an OOM entry: what the driver said was free, in bytes."""
    size: Column
    stream: Column
    time_us: Column
    """-1 where it was not recorded."""
    stack: Column
    stacks: Stacks
    segments: tuple[Segment, ...]
    annotations: tuple[Annotation, ...]
    settings: Mapping[str, Any]
    """What PyTorch says of the allocator's settings; empty in older files."""
    labels: Labels = field(default_factory=Labels)

    def __len__(self) -> int:
        return len(self.action)

    @property
    def reserved_bytes(self) -> int:
        """Of the segments at the end."""
        return sum(segment.size for segment in self.segments)
