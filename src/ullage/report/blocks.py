"""Blocks of memory over time, for a picture that can be explored: plain columns, of which a page draws every block."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]


def _none() -> Column:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facet:
    """What blocks can be told apart by, such as the line that allocated them: a page can colour them by it."""

    title: str
    labels: tuple[str, ...]
    """The names of what a block can be, the most important first."""
    of_block: Column
    """The index of each block's label."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LifeColumns:
    """Blocks in the order in which they were allocated, each with its life in moments."""

    born: Column
    """The moment at which the block was allocated; 0 for one that was there before."""
    life: Column
    """The number of moments until it was freed; one that never was has at least the number of all moments."""
    wait: Column
    """The number of moments from then until others could use its memory: above 0 where another stream still used it."""
    size_bytes: Column
    address: Column
    stack: Column
    """The index of the stack that allocated it; -1: none was recorded."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentColumns:
    """Pieces of memory that the allocator held from the driver, each with its life in moments."""

    born: Column = field(default_factory=_none)
    life: Column = field(default_factory=_none)
    """The number of moments until it was given back; one that never was has at least the number of all moments."""
    address: Column = field(default_factory=_none)
    size_bytes: Column = field(default_factory=_none)
    is_page: Column = field(default_factory=_none)
    """1 for mapped pages of an expandable segment, which go on where the pages before them end."""
    kind: Column = field(default_factory=_none)
    """An index of `kinds`."""
    kinds: tuple[str, ...] = ()
    """The kinds of segments: a pool and a stream each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackColumns:
    """Stacks of source lines: stack n is `frames[starts[n]:starts[n + 1]]`, the innermost first."""

    starts: Column
    frames: Column
    """Indices of `texts`."""
    texts: tuple[str, ...]
    is_own: tuple[bool, ...]
    """Whether a line is the user's own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockHistory:
    """Memory over a run, block by block, and the segments in which the blocks lie. A moment is after one event."""

    title: str
    event: Column
    """The number of the recorded event behind each moment, from 1; 0 for what was there before the first."""
    time_us: Column
    """The time of each moment; empty where none was recorded."""
    blocks: LifeColumns
    facets: tuple[Facet, ...]
    """The first one gives the colours until another is chosen."""
    segments: SegmentColumns
    stacks: StackColumns
    step_ends: tuple[int, ...]
    """The last moment of each step, as far as steps are known."""
    moment: int
    """The moment that matters, shown first."""
    moment_label: str
    moment_remark: str = ""
    """The event at that moment, where it is no allocation or free."""
    limit_bytes: int | None = None
    """The most that the allocator could reserve."""
    limit_label: str = ""
    small_bytes: Column = field(default_factory=_none)
    """Bytes of blocks that are left out because there are too many, at each moment; empty where none is."""
    small_label: str = ""
