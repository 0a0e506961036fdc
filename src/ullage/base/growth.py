"""The rule by which memory grows from step to step, for `predict`, `explain` and `Monitor` alike (docs/growth.md).

Levels at the ends of steps rise by chance where batches vary in size. What chance does not do is to leave blocks of
several steps alive: a batch, a loss or a prefetched batch is let go of when the next one takes its place. So a line
grows where blocks that it made in several different steps live on, as long as it goes on to keep some. It has stopped
when it has kept nothing for longer than it ever paused, it slows down where later steps keep fewer than earlier ones,
and what is let go of again (a queue, a list that is cleared) is a pattern that repeats. Where blocks are replaced by
larger ones, bytes have to rise evenly, at more steps.

`growing` judges runs of which every block is known; a `Monitor` knows levels, and uses the same numbers for these.
This module uses no torch.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, Generic, NamedTuple, TypeVar

LineT = TypeVar("LineT")

FIRST_STEP: Final = 2
"""The first step makes what stays; blocks of later ones count."""
LEAST_RISES: Final = 3
"""The number of different steps, or of pairs of block lists, in which a line has to keep blocks."""
LEAST_RISES_IF_EVEN: Final = 2
"""The same where the ends of the last steps rise very evenly."""
LEAST_RISES_IN_BYTES: Final = 8
"""The number of steps over which bytes have to rise where the number of blocks does not: batches may become longer."""
LEAST_BYTES_PER_STEP: Final = 8 << 10
"""Slower growth than this is not reported, until it has added up to enough."""
_NOTICEABLE_STEPS: Final = 512
"""Slower growth is reported when it has added up to as much as the least growth would in so many steps (4 MiB)."""
EVEN: Final = 0.4
"""The smallest allowed ratio of a rise to the mean rise, for growth in bytes alone, which has to be even."""
EVEN_AMONG_MANY: Final = 0.75
"""The same for a line with many blocks: where some of these are replaced by larger ones, bytes rise by chance."""
FEW_BLOCKS: Final = 8
"""The largest number of blocks that are not many."""
_VERY_EVEN: Final = 0.95
SLOWING_RATIO: Final = 0.7
"""The ratio of later to earlier growth, over equally many steps, below which growth slows down: a cache that fills."""
_STOPPED_ONE_IN: Final = 4
"""Growth has stopped at the earliest after one part in this many of the time that it took."""
PEAK_RATIO: Final = 2.5
"""The ratio of the peak's rise to that of what stays from which on growth in bytes is due to longer batches. A leak
has a ratio of up to 2: `state = torch.cat([state, new])` has the state twice at its peak."""


def is_noticeable(bytes_per_step: float, total_bytes: int, least_bytes_per_step: int = LEAST_BYTES_PER_STEP) -> bool:
    """Tell whether growth is fast enough to be reported, or has added up to enough."""
    return bytes_per_step >= least_bytes_per_step or total_bytes >= _NOTICEABLE_STEPS * least_bytes_per_step


def is_even(rises: Sequence[int], share: float) -> bool:
    """Tell whether all rises are positive and about as large as their mean: `share` of it at least."""
    mean = sum(rises) / len(rises)
    return min(rises) >= share * mean > 0 and max(rises) * share <= mean


def even_share(blocks: int) -> float:
    """Return how even the rises of a line with so many blocks have to be."""
    return EVEN if blocks <= FEW_BLOCKS else EVEN_AMONG_MANY


def is_slowing(earlier: float, later: float) -> bool:
    """Tell whether growth slows down, from what was kept in two equally long parts of the time."""
    return later < SLOWING_RATIO * earlier


def has_stopped(quiet_steps: int, *, longest_pause_steps: int, growing_steps: int) -> bool:
    """Tell whether growth has stopped.

    Args:
        quiet_steps: the number of steps since the last rise.
        longest_pause_steps: the largest number of steps from one rise to the next.
        growing_steps: the number of steps from the first rise to the last.
    """
    return quiet_steps >= max(longest_pause_steps, growing_steps / _STOPPED_ONE_IN)


def is_longer_batch(peak_rise_bytes: int, kept_rise_bytes: int) -> bool:
    """Tell whether the peak rises by so much more than what stays that batches have become longer."""
    return peak_rise_bytes >= PEAK_RATIO * kept_rise_bytes


class StepBlock(NamedTuple, Generic[LineT]):
    """A block that is alive at the end of its own step at least."""

    line: LineT
    step: int
    """The number of the step in which it was made, from 1 on."""
    until: int
    """The number of the last step at whose end it is alive."""
    size_bytes: int
    key: int
    """A number by which the caller knows it, such as its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing(Generic[LineT]):
    """What every step keeps on average."""

    bytes_per_step: int
    line: LineT
    """The line that keeps most of it."""
    line_bytes_per_step: int
    kept: dict[LineT, list[StepBlock[LineT]]]
    """The blocks that each line has kept."""


def growing(
    blocks: Sequence[StepBlock[LineT]], end_bytes: Sequence[int], peak_bytes: Sequence[int]
) -> Growing[LineT] | None:
    """Return what grows by a noticeable amount; None where nothing does.

    Args:
        blocks: those of all complete steps.
        end_bytes: what was allocated at the end of each complete step.
        peak_bytes: the peak of each complete step.
    """
    by_line: defaultdict[LineT, list[StepBlock[LineT]]] = defaultdict(list)
    for block in blocks:
        by_line[block.line].append(block)
    last = len(end_bytes)
    steps = last - FIRST_STEP
    needed = LEAST_RISES_IF_EVEN if _rise_evenly(end_bytes) else LEAST_RISES
    total: dict[LineT, int] = {}
    kept = {}
    for line, of_line in by_line.items():
        if alive := _kept(of_line, needed, last):
            total[line] = sum(block.size_bytes for block in alive)
            kept[line] = alive
        elif rise := _rise_of_replaced(of_line, end_bytes, peak_bytes):
            total[line] = rise * steps
            kept[line] = [block for block in of_line if block.until == last]
    if not total or not is_noticeable(sum(total.values()) / steps, sum(total.values())):
        return None
    most = max(total, key=lambda line: total[line])
    return Growing(
        bytes_per_step=sum(total.values()) // steps,
        line=most,
        line_bytes_per_step=total[most] // steps,
        kept=kept,
    )


def _rise_evenly(end_bytes: Sequence[int]) -> bool:
    rises = _differences(end_bytes[-LEAST_RISES - 1 :])
    return len(rises) == LEAST_RISES and is_even(rises, _VERY_EVEN)


def _kept(blocks: Sequence[StepBlock[LineT]], steps_needed: int, last: int) -> list[StepBlock[LineT]]:
    """Return a line's blocks that have outlived the step after theirs and live on; none where that may be chance."""
    outliving = [block for block in blocks if FIRST_STEP <= block.step < min(block.until, last)]
    alive = [block for block in outliving if block.until == last]
    kept_bytes, lived_bytes = (sum(block.size_bytes for block in some) for some in (alive, outliving))
    steps = sorted({block.step for block in alive})
    if len(steps) < steps_needed or 2 * kept_bytes <= lived_bytes:
        return []
    oldest, newest = steps[0], steps[-1]
    if steps == list(range(oldest, last)) and min(block.step for block in outliving) < oldest:
        return []  # a queue, which lets go of older ones
    quiet = last - 1 - newest
    if has_stopped(quiet, longest_pause_steps=max(_differences(steps)), growing_steps=newest - oldest):
        return []
    half = (last - oldest) // 2
    earlier, later = sum(step < oldest + half for step in steps), sum(step >= last - half for step in steps)
    return [] if is_slowing(earlier, later + 1) else alive  # one step more or less is chance


def _rise_of_replaced(blocks: Sequence[StepBlock[LineT]], end_bytes: Sequence[int], peak_bytes: Sequence[int]) -> int:
    """Return the mean rise of a line whose blocks are replaced by larger ones at every step; 0 where none rises so."""
    last = len(end_bytes)
    if last <= LEAST_RISES_IN_BYTES + 1:
        return 0
    sizes, counts = [0] * (last + 1), [0] * (last + 1)
    for block in blocks:
        sizes[block.step - 1] += block.size_bytes
        sizes[block.until] -= block.size_bytes
        counts[block.step - 1] += 1
        counts[block.until] -= 1
    levels, numbers = (list(accumulate(changes))[1:last] for changes in (sizes, counts))
    rises = _differences(levels)
    if min(_differences(numbers)) < 0 or not is_even(rises, even_share(numbers[-1])):
        return 0
    if is_longer_batch(peak_bytes[-1] - peak_bytes[1], levels[-1] - levels[0]):
        return 0
    return sum(rises) // len(rises)


def _differences(values: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(values)]
