"""Memory blocks over time, as arrays. An HTML page uses them to draw every block in an interactive chart."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]


def _none() -> Column:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facet:
    """One way to label memory blocks, such as by the source line that allocated each block. A page can colour blocks by
    these labels.
    """

    title: str
    labels: tuple[str, ...]
    """The labels of the blocks. The most important label comes first."""
    of_block: Column
    """The index in `labels` of each block's label."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LifeColumns:
    """Arrays with one entry for each memory block, in order of allocation. Times are positions on the chart's time
    axis.
    """

    born: Column
    """The position at which the block was allocated. It is 0 for a block that existed before the recording."""
    life: Column
    """The number of positions from allocation to free. If the block was never freed, it is at least the number of all
    positions.
    """
    wait: Column
    """The number of positions from the free until the memory could be reused. It is above 0 if another stream still
    used the memory.
    """
    size_bytes: Column
    address: Column
    stack: Column
    """The index of the call stack that allocated the block; -1 if the call stack was not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentColumns:
    """Arrays with one entry for each segment that the allocator reserved from the driver."""

    born: Column = field(default_factory=_none)
    life: Column = field(default_factory=_none)
    """The number of positions until the segment was returned to the driver. If it was never returned, it is at least
    the number of all positions.
    """
    address: Column = field(default_factory=_none)
    size_bytes: Column = field(default_factory=_none)
    is_page: Column = field(default_factory=_none)
    """1 for the mapped pages of an expandable segment, and 0 for other segments. Such pages continue where the pages
    before them end.
    """
    kind: Column = field(default_factory=_none)
    """The index in `kinds` of each segment's kind."""
    kinds: tuple[str, ...] = ()
    """The names of the kinds of segments. A kind is a combination of a memory pool and a CUDA stream."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackColumns:
    """Call stacks as arrays. Stack n has the source lines `frames[starts[n]:starts[n + 1]]`, innermost first."""

    starts: Column
    frames: Column
    """The index in `texts` of each source line in the stacks."""
    texts: tuple[str, ...]
    is_own: tuple[bool, ...]
    """Whether each source line in `texts` is in the user's own code."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockHistory:
    """The blocks and segments of a run over time. Each position on the time axis is the state after one event."""

    title: str
    event: Column
    """The number of recorded events up to each position on the time axis. It is 0 at the first position."""
    time_us: Column
    """The time of each position in microseconds. It is empty if times were not recorded."""
    blocks: LifeColumns
    facets: tuple[Facet, ...]
    """The ways to label blocks. When the page opens, the blocks have the colours of the first way."""
    segments: SegmentColumns
    stacks: StackColumns
    step_ends: tuple[int, ...]
    """The position at which each training step ends. It is empty if the steps are not known."""
    moment: int
    """The position that the page shows first, such as that of the out-of-memory error."""
    moment_label: str
    moment_remark: str = ""
    """A text that describes the event at the position `moment`. It is empty if the event is an allocation or a free."""
    limit_bytes: int | None = None
    """The most bytes that the allocator could reserve. None: this is not known."""
    limit_label: str = ""
    small_bytes: Column = field(default_factory=_none)
    """The total bytes of the omitted blocks at each position. If a run has too many blocks, the smallest ones are
    omitted; if none are, the array is empty.
    """
    small_label: str = ""
