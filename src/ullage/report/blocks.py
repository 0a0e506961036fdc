"""Arrays of memory blocks over time, for the interactive charts of an HTML page."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]


def _none() -> Column:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facet:
    """A way to label memory blocks, such as by the source line that allocated them. Charts colour blocks by label."""

    title: str
    labels: tuple[str, ...]
    """The labels, with the most important one first."""
    of_block: Column
    """The index in `labels` for each block."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LifeColumns:
    """Arrays with one entry for each memory block, in order of allocation.

    Times are positions on the chart's time axis.
    """

    born: Column
    """The time at which the block was allocated; 0 if it existed before the recording."""
    life: Column
    """The time from the allocation of the block to its free, or to the end of the recording."""
    wait: Column
    """The time from the free until the memory could be reused. Above 0 if another stream still used the memory."""
    size_bytes: Column
    address: Column
    stack: Column
    """The index of the call stack that allocated the block, or -1 if it was not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentColumns:
    """Arrays with one entry for each segment that the allocator reserved from the driver."""

    born: Column = field(default_factory=_none)
    life: Column = field(default_factory=_none)
    """The time until the segment was returned to the driver, or until the end of the recording."""
    address: Column = field(default_factory=_none)
    size_bytes: Column = field(default_factory=_none)
    is_page: Column = field(default_factory=_none)
    """Whether the segment consists of mapped pages of an expandable segment (1 or 0)."""
    kind: Column = field(default_factory=_none)
    """The index in `kinds` for each segment."""
    kinds: tuple[str, ...] = ()
    """The memory pools and CUDA streams that segments belong to, as texts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackColumns:
    """Call stacks as arrays. Stack n has the source lines `frames[starts[n]:starts[n + 1]]`, innermost first."""

    starts: Column
    frames: Column
    """The index in `texts` for each source line."""
    texts: tuple[str, ...]
    is_own: tuple[bool, ...]
    """Whether each source line in `texts` belongs to the user's own code."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockHistory:
    """The memory blocks and segments of a run over time.

    Each point on the time axis is the state after one event, such as an allocation.
    """

    title: str
    event: Column
    """The number of recorded events up to each point on the time axis."""
    time_us: Column
    """The time in microseconds at each point on the time axis. The array is empty if no times were recorded."""
    blocks: LifeColumns
    facets: tuple[Facet, ...]
    """The ways to label and colour blocks. The page opens with the first one."""
    segments: SegmentColumns
    stacks: StackColumns
    step_ends: tuple[int, ...]
    """The points on the time axis at which training steps end. The tuple is empty if the steps are not known."""
    moment: int
    """The point in time that the page shows first, such as the time of an out-of-memory error."""
    moment_label: str
    moment_remark: str = ""
    """A description of the event at the position `moment`. Empty: the event is an allocation or a free."""
    limit_bytes: int | None = None
    """The memory limit of the allocator in bytes. None: it is not known."""
    limit_label: str = ""
    small_bytes: Column = field(default_factory=_none)
    """The total size of the blocks that the chart leaves out, at each point on the time axis.

    The array is empty if the chart shows all blocks. If a run has too many blocks, the chart leaves out the smallest.
    """
    small_label: str = ""
