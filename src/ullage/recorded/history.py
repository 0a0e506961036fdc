"""The class `History`: one device's allocator recording as arrays."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

import numpy as np

from ullage.recorded.frame import Frame
from ullage.recorded.program import Column, is_one_of
from ullage.recorded.release import Release


class Action(IntEnum):
    """The kind of a trace entry in a memory snapshot. The names are PyTorch's."""

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
    ANNOTATE = 10


ACTIONS: Final[Mapping[str, Action]] = {
    **{action.name.lower(): action for action in Action if action is not Action.OTHER},
    "free": Action.FREE_COMPLETED,
}
"""The kinds of trace entries by PyTorch's names. Unknown names are read as `Action.OTHER`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStacks:
    """All distinct call stacks of a recording. Each is a list of rows in the frame table."""

    starts: Column
    frames: Column
    table: tuple[Frame, ...]

    def frames_of(self, stack: int) -> tuple[Frame, ...]:
        """Return the frames of a recorded stack, innermost first. Stack -1 has no frames."""
        if stack < 0:
            return ()
        return tuple(self.table[row] for row in self.frames[self.starts[stack] : self.starts[stack + 1]].tolist())


PENDING: Final = ("active_pending_free", "active_awaiting_free")
"""PyTorch's names for the state of a freed block that other streams may still use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotBlock:
    """A memory block in a segment when the snapshot was taken. Sizes are in bytes."""

    address: int
    size: int
    requested: int
    """The bytes requested in the block's last allocation."""
    state: str
    """PyTorch's name for the state of the block, such as "active_allocated" or "inactive"."""
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
    """The ID of the segment's private pool. 0 is the default pool."""
    blocks: tuple[SnapshotBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedHistory:
    """The recording of PyTorch's allocator of pinned host memory, which serves all devices of a process.

    It is written since torch 2.14, with `_record_memory_history(record_pinned_host_memory=True)`. The sizes are those
    that the allocator takes from the system, rounded up to powers of two. The requested bytes are not recorded.
    """

    action: Column
    size: Column
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A named time range in a recording: an optimizer step, or a range that the user named."""

    name: str
    stage: str
    time_us: int


def _nothing() -> Column:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Labels of a recording's trace entries, as arrays. Arrays without any labels are empty."""

    metadata: Column = field(default_factory=_nothing)
    """The label set with torch.cuda.memory._set_memory_metadata, as an index into `texts`, or -1."""
    context: Column = field(default_factory=_nothing)
    """The torch.compile region that made the allocation, as an index into `texts`, or -1."""
    pool: Column = field(default_factory=_nothing)
    """The ID of the private pool of each trace entry. 0 is the default pool."""
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The recording of one device's allocator: its trace entries as arrays, and its final state."""

    device: int
    action: Column
    address: Column
    """The address in each trace entry. For an OOM entry, it is the number of free bytes on the device."""
    size: Column
    stream: Column
    time_us: Column
    """The time of each trace entry in microseconds, or -1 if unknown."""
    stack: Column
    stacks: RecordedStacks
    segments: tuple[Segment, ...]
    annotations: tuple[Annotation, ...]
    settings: Mapping[str, Any]
    """The recorded allocator settings. Older snapshots have none."""
    labels: Labels = field(default_factory=Labels)
    release: Release = field(default_factory=Release)
    """The PyTorch versions that can have written the recording."""
    pinned: PinnedHistory | None = None
    """The pinned host memory of the process, or None if it was not recorded."""
    unknown_keys: tuple[str, ...] = ()
    """The names of what the file contains and ullage does not know, such as a key that a newer PyTorch writes."""

    def __len__(self) -> int:
        return len(self.action)

    @property
    def has_requests(self) -> bool:
        """Whether any allocation was recorded."""
        return bool(is_one_of(self.action, (Action.ALLOC, Action.OOM)).any())

    def without_trace(self) -> "History":
        """Return a copy with only the allocator's final state, without trace entries."""
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
    """Return the error text for a snapshot without a trace of allocations, which cannot be simulated.

    Args:
        to_do: a verb that says what the command does with a recording.
    """
    return (
        f"this file has no trace, only the allocator's state when it was written, so there is nothing to {to_do}; "
        "call torch.cuda.memory._record_memory_history() first"
    )
