"""Shows how much pinned host memory a recorded run held, and which lines allocated it."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ullage.explaining.analysis.holder import LineHolder
from ullage.explaining.analysis.recording import line_of_frames
from ullage.recorded.history import Action, History
from ullage.recorded.program import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedUse:
    """The pinned host memory of a process when the snapshot was taken. Sizes are in bytes.

    PyTorch rounds each allocation up to a power of two (CachingHostAllocator.h), and keeps freed memory for later.
    """

    allocated_bytes: int
    cached_bytes: int
    """The bytes that were freed, and that the allocator keeps."""
    peak_bytes: int
    """The most bytes that were allocated or kept at one time, as far as they were recorded."""
    lines: tuple[LineHolder, ...]
    """The source lines that allocated the memory that is still in use. The largest comes first."""


def pinned_use_of(history: History) -> PinnedUse | None:
    """Return the use of pinned host memory, or None if it was not recorded."""
    pinned = history.pinned
    if pinned is None:
        return None
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for segment in pinned.segments:
        for block in segment.blocks:
            if block.state != "inactive":
                line = line_of_frames(history.stacks.frames_of(block.stack))
                sizes[line] += block.size
                counts[line] += 1
    reserved, allocated = sum(segment.size for segment in pinned.segments), sum(sizes.values())
    return PinnedUse(
        allocated_bytes=allocated,
        cached_bytes=reserved - allocated,
        peak_bytes=_peak(pinned.action, pinned.size, at_end=reserved),
        lines=tuple(LineHolder(line=line, bytes=size, blocks=counts[line]) for line, size in sizes.most_common()),
    )


def _peak(action: Column, size: Column, *, at_end: int) -> int:
    change = np.where(action == Action.SEGMENT_ALLOC, size, np.where(action == Action.SEGMENT_FREE, -size, 0))
    later = np.cumsum(change[::-1])  # what the entries from each one on have added
    return int(at_end - later.min(initial=0))
