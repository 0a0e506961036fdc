"""Blocks of memory over time, as arrays from which an HTML page draws every block in an interactive chart."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]


def _none() -> Column:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facet:
    """Labels of blocks, such as the source line that allocated each block. A page can colour blocks by them."""

    title: str
    labels: tuple[str, ...]
    """The names of the labels, the most important first."""
    of_block: Column
    """The index of each block's label."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LifeColumns:
    """Arrays with one entry for each block, in order of allocation. Times are positions on the chart's time axis."""

    born: Column
    """The position on the time axis at which the block was allocated; 0 for a block that existed before the
    recording.
    """
    life: Column
    """The number of positions on the time axis from allocation to free. For a block that was never freed, at least the
    number of all positions.
    """
    wait: Column
    """The number of positions on the time axis from the free until the memory could be reused; above 0 if another
    stream still used it.
    """
    size_bytes: Column
    address: Column
    stack: Column
    """The index of the stack that allocated the block; -1 if the stack was not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentColumns:
    """Arrays with one entry for each segment that the allocator reserved from the driver."""

    born: Column = field(default_factory=_none)
    life: Column = field(default_factory=_none)
    """The number of positions on the time axis until the segment was returned to the driver. For a segment that was
    never returned, at least the number of all positions.
    """
    address: Column = field(default_factory=_none)
    size_bytes: Column = field(default_factory=_none)
    is_page: Column = field(default_factory=_none)
    """1 for mapped pages of an expandable segment; they continue at the end of the pages before them."""
    kind: Column = field(default_factory=_none)
    """An index of `kinds`."""
    kinds: tuple[str, ...] = ()
    """The kinds of segments; each kind is a pool and a stream."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackColumns:
    """Call stacks. Stack n has the source lines `frames[starts[n]:starts[n + 1]]`, innermost first."""

    starts: Column
    frames: Column
    """Indices of `texts`."""
    texts: tuple[str, ...]
    is_own: tuple[bool, ...]
    """Whether a line is in the user's own code."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockHistory:
    """The blocks and segments of a run over time. Each position on the time axis is the state after one event."""

    title: str
    event: Column
    """The number, from 1, of the recorded event before each position on the time axis; 0 for the state before the first
    event.
    """
    time_us: Column
    """The time of each position on the time axis; empty if times were not recorded."""
    blocks: LifeColumns
    facets: tuple[Facet, ...]
    """The ways to label blocks. The page starts with the colours of the first one."""
    segments: SegmentColumns
    stacks: StackColumns
    step_ends: tuple[int, ...]
    """The last position on the time axis of each training step, if the steps are known."""
    moment: int
    """The position on the time axis that the page shows first, such as that of the out-of-memory error."""
    moment_label: str
    moment_remark: str = ""
    """The event at `mark`, if it is neither an allocation nor a free."""
    limit_bytes: int | None = None
    """The most bytes that the allocator could reserve."""
    limit_label: str = ""
    small_bytes: Column = field(default_factory=_none)
    """The bytes of blocks that were left out because there are too many blocks, at each position; empty if all are
    included.
    """
    small_label: str = ""
