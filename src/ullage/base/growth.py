"""Growth from step to step: which lines leave blocks behind, step after step.

Levels at the ends of steps rise by chance where batches vary in size. What chance does not do is to leave blocks of
several steps alive: a batch, a loss or a prefetched batch is let go of when the next one takes its place. So a line is
said to grow where blocks that it made in at least three different steps live on at the end of the run (two, where the
ends of the last steps rise evenly as well). Most of its blocks that have outlived a step have to do so, the oldest
included: a queue of a certain length lets go of the older ones. It knows no torch.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

LineT = TypeVar("LineT")

FIRST_STEP: Final = 2
"""The first step makes what stays; blocks of later ones count."""
_STEPS_NEEDED: Final = 3
_STEPS_NEEDED_IF_EVEN: Final = 2
_RISES: Final = 3
_LARGEST_RATIO: Final = 1.1
"""The largest of rises that are even, as a multiple of the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outliving(Generic[LineT]):
    """A block that was alive at the end of the step after its own."""

    line: LineT
    step: int
    """The number of the step in which it was made, `FIRST_STEP` or later and before the last."""
    is_alive: bool
    """Whether it is alive at the end of the last step."""
    size_bytes: int
    address: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing(Generic[LineT]):
    """What every step keeps on average, and the line that keeps most of it, with its blocks."""

    bytes_per_step: int
    line: LineT
    addresses: list[int]


def growing(blocks: Sequence[Outliving[LineT]], end_bytes: Sequence[int]) -> Growing[LineT] | None:
    """Return what grows; None where nothing does.

    Args:
        blocks: those of all complete steps.
        end_bytes: what was allocated at the end of each complete step.
    """
    needed = _STEPS_NEEDED_IF_EVEN if _rise_evenly(end_bytes) else _STEPS_NEEDED
    by_line: defaultdict[LineT, list[Outliving[LineT]]] = defaultdict(list)
    for block in blocks:
        by_line[block.line].append(block)
    kept = {line: _kept(of_line, needed, len(end_bytes)) for line, of_line in by_line.items()}
    sizes = {line: sum(block.size_bytes for block in of_line) for line, of_line in kept.items() if of_line}
    if not sizes:
        return None
    most = max(sizes, key=lambda line: sizes[line])
    return Growing(
        bytes_per_step=sum(sizes.values()) // (len(end_bytes) - FIRST_STEP),
        line=most,
        addresses=[block.address for block in kept[most]],
    )


def _rise_evenly(end_bytes: Sequence[int]) -> bool:
    rises = [after - before for before, after in itertools.pairwise(end_bytes[-_RISES - 1 :])]
    return len(rises) == _RISES and 0 < max(rises) <= _LARGEST_RATIO * min(rises)


def _kept(blocks: Sequence[Outliving[LineT]], steps_needed: int, last: int) -> list[Outliving[LineT]]:
    """Return a line's blocks that live on; none where that may be chance."""
    alive = [block for block in blocks if block.is_alive]
    kept_bytes, lived_bytes = (sum(block.size_bytes for block in some) for some in (alive, blocks))
    steps = {block.step for block in alive}
    if len(steps) < steps_needed or 2 * kept_bytes <= lived_bytes:
        return []
    oldest = min(steps)
    is_queue = steps == set(range(oldest, last)) and min(block.step for block in blocks) < oldest
    return [] if is_queue else alive
