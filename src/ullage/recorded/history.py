"""The class `History`, which has the recording of one device's allocator as columns. This module reads no files and
interprets nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

import numpy as np

from ullage.recorded.program import Column, is_one_of


class Action(IntEnum):
    """The kind of an entry in the trace of a memory snapshot. The names are PyTorch's."""

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


ACTIONS: Final[Mapping[str, Action]] = {
    **{action.name.lower(): action for action in Action if action is not Action.OTHER},
    "free": Action.FREE_COMPLETED,
}
"""The kinds of trace entries by PyTorch's names. Every other name is read as `Action.OTHER`."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a Python or C++ stack."""

    name: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStacks:
    """All distinct stacks that a recording contains. The frames of stack n are the rows `frames[starts[n]:starts[n +
    1]]` of `table`.
    """

    starts: Column
    frames: Column
    table: tuple[Frame, ...]

    def frames_of(self, stack: int) -> tuple[Frame, ...]:
        """Return the frames of a recorded stack, innermost first. The stack -1 has no frames."""
        if stack < 0:
            return ()
        return tuple(self.table[row] for row in self.frames[self.starts[stack] : self.starts[stack + 1]].tolist())


PENDING: Final = ("active_pending_free", "active_awaiting_free")
"""The names of a freed block that other streams may still use. PyTorch's Python code and its C++ code use different
names.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotBlock:
    """A memory block of a segment at the time of the snapshot. Sizes are in bytes."""

    address: int
    size: int
    requested: int
    """The bytes that were requested for the block. For a free block, these are the bytes that were requested when it
    was last allocated.
    """
    state: str
    """PyTorch's name for the state of the block: active_allocated, inactive, or one of `PENDING`."""
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
    """The ID of the segment's private pool; 0 is the default pool."""
    blocks: tuple[SnapshotBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A named time range in a recording. It is an optimizer step, or a range that the user named."""

    name: str
    stage: str
    time_us: int


def _nothing() -> Column:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The labels of a recording's trace entries, in columns as long as the trace. A column is empty if no entry has
    this kind of label.
    """

    metadata: Column = field(default_factory=_nothing)
    """The label that the user set with torch.cuda.memory._set_memory_metadata, as an index into `texts`. It is -1 if
    the user set no label.
    """
    context: Column = field(default_factory=_nothing)
    """The torch.compile region that made the allocation, as an index into `texts`. It is -1 if no region made it."""
    pool: Column = field(default_factory=_nothing)
    """The ID of the private pool that the trace entry belongs to; 0 is the default pool."""
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The recording of one device's allocator. It has the trace entries as columns of equal length, and the final
    state.
    """

    device: int
    action: Column
    address: Column
    """The address of each trace entry. For an OOM entry, it is the number of bytes that the driver reported free."""
    size: Column
    stream: Column
    time_us: Column
    """The time of each trace entry in microseconds. It is -1 if no time was recorded."""
    stack: Column
    stacks: RecordedStacks
    segments: tuple[Segment, ...]
    annotations: tuple[Annotation, ...]
    settings: Mapping[str, Any]
    """The allocator settings as PyTorch recorded them in the file. Older files do not have them."""
    labels: Labels = field(default_factory=Labels)

    def __len__(self) -> int:
        return len(self.action)

    @property
    def has_requests(self) -> bool:
        """Whether any memory request was recorded. If not, only the allocator's state at the end is known."""
        return bool(is_one_of(self.action, (Action.ALLOC, Action.OOM)).any())

    def without_trace(self) -> "History":
        """Return a history with nothing but the allocator's state at the end. A history without trace entries is
        returned unchanged.
        """
        if not len(self):
            return self
        none = _nothing()
        columns: dict[str, Any] = dict.fromkeys(("action", "address", "size", "stream", "time_us", "stack"), none)
        return replace(self, **columns, annotations=(), labels=Labels())

    @property
    def reserved_bytes(self) -> int:
        """The bytes of all segments at the end."""
        return sum(segment.size for segment in self.segments)


def without_trace(to_do: str) -> str:
    """Return the error text for a recording that cannot be replayed because it has no trace of allocations.

    Args:
        to_do: a verb that says what the command does with a recording.
    """
    return (
        f"this file has no trace, only the allocator's state when it was written, so there is nothing to {to_do}; "
        "call torch.cuda.memory._record_memory_history() first"
    )
