"""Decide whether memory grows from one training step to the next. `predict`, `explain` and `Monitor` use this rule.

Batches of different sizes change the memory use by chance. But chance does not keep blocks of several steps alive: a
batch or a loss is freed when the next one replaces it. So a source line grows if blocks that it allocated in several
steps stay alive, and if it continues to keep blocks.

Growth has stopped if the line has kept nothing for longer than its longest pause. Growth slows down if later steps keep
fewer blocks than earlier ones. A queue or a list that is cleared frees its blocks later; this is not growth. If larger
blocks replace earlier ones, the bytes have to rise evenly and over more steps.

`growing` judges runs in which every block is known. A `Monitor` knows only the allocated bytes after each step, and
applies the same thresholds to them. docs/growth.md explains the rule.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, Generic, NamedTuple, TypeVar

LineT = TypeVar("LineT")

FIRST_STEP: Final = 2
"""The first training step that counts for memory growth. Step 1 allocates memory that stays, such as optimizer
state.
"""
LEAST_RISES: Final = 3
"""The number of training steps in which a source line must keep memory before it is reported as growing."""
LEAST_RISES_IF_EVEN: Final = 2
"""The number of training steps in which a source line must keep memory before it is reported as growing.

This number applies if memory rises by almost the same amount in each step.
"""
LEAST_RISES_IN_BYTES: Final = 8
"""The number of training steps over which memory must rise if blocks become larger but not more numerous.

If memory rises over fewer steps, longer batches alone may be the cause.
"""
LEAST_BYTES_PER_STEP: Final = 8 << 10
"""Growth of at least this many bytes per training step is always reported."""
# A rise of 8 KiB per step is reported after 512 steps, at a total of 4 MiB.
_NOTICEABLE_STEPS: Final = 512
EVEN: Final = 0.4
"""The limit for even memory growth: each training step adds at least this fraction of the mean increase per step."""
EVEN_AMONG_MANY: Final = 0.75
"""The limit for even memory growth of a source line with more than 8 memory blocks.

Each training step adds at least this fraction of the mean increase per step. The limit is strict, because a few of
many blocks may get larger by chance.
"""
FEW_BLOCKS: Final = 8
_VERY_EVEN: Final = 0.95
SLOWING_RATIO: Final = 0.7
"""Memory growth slows down if later growth divided by earlier growth is below this number.

An example is a cache that fills.
"""
# Growth has stopped once a quarter of the steps since the first rise have passed without a rise.
_STOPPED_ONE_IN: Final = 4
PEAK_RATIO: Final = 2.5
"""The limit for the increase of peak memory, divided by the increase of memory that stays allocated.

Above the limit, longer batches explain the growth. A memory leak has a ratio of at most 2: for example,
`state = torch.cat([state, new])` needs memory for both the old and the new state at the peak.
"""


def is_noticeable(bytes_per_step: float, total_bytes: int, least_bytes_per_step: int = LEAST_BYTES_PER_STEP) -> bool:
    """Return whether memory growth is fast or large enough to be reported."""
    return bytes_per_step >= least_bytes_per_step or total_bytes >= _NOTICEABLE_STEPS * least_bytes_per_step


def is_even(rises: Sequence[int], share: float) -> bool:
    """Return whether memory rises by similar amounts in all steps.

    A rise may be as small as the mean times `share`, and as large as the mean divided by `share`.
    """
    mean = sum(rises) / len(rises)
    return min(rises) >= share * mean > 0 and max(rises) * share <= mean


def even_share(blocks: int) -> float:
    """Return the fraction of the mean memory increase that each training step must add, so that growth counts as even.

    Args:
        blocks: the number of memory blocks of the source line.
    """
    return EVEN if blocks <= FEW_BLOCKS else EVEN_AMONG_MANY


def is_slowing(earlier: float, later: float) -> bool:
    """Return whether memory growth slows down.

    Args:
        earlier: a measure of the growth in the first half of a period.
        later: the same measure for the second half of the period.
    """
    return later < SLOWING_RATIO * earlier


def has_stopped(quiet_steps: int, *, longest_pause_steps: int, growing_steps: int) -> bool:
    """Return whether memory growth has stopped.

    Args:
        quiet_steps: the number of steps since the last rise.
        longest_pause_steps: the largest number of steps from one rise to the next.
        growing_steps: the number of steps from the first rise to the last.
    """
    return quiet_steps >= max(longest_pause_steps, growing_steps / _STOPPED_ONE_IN)


def is_longer_batch(peak_rise_bytes: int, kept_rise_bytes: int) -> bool:
    """Return whether longer batches explain the memory growth, because the peak rises much more than the memory that
    stays.
    """
    return peak_rise_bytes >= PEAK_RATIO * kept_rise_bytes


class StepBlock(NamedTuple, Generic[LineT]):
    """A memory block that is still allocated at the end of the step that allocated it."""

    line: LineT
    step: int
    """The training step that allocated the block, counted from 1."""
    until: int
    """The last training step that ended while the block was still allocated."""
    size_bytes: int
    key: int
    """A number that identifies the block, such as its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing(Generic[LineT]):
    """The average memory growth per training step, and the source lines that cause it."""

    bytes_per_step: int
    line: LineT
    """The source line that keeps the most memory."""
    line_bytes_per_step: int
    kept: dict[LineT, list[StepBlock[LineT]]]
    """Maps each source line to its blocks that stay allocated."""


def growing(
    blocks: Sequence[StepBlock[LineT]], end_bytes: Sequence[int], peak_bytes: Sequence[int]
) -> Growing[LineT] | None:
    """Return the memory growth over the training steps, or None if it is too small to report.

    Args:
        blocks: the blocks of all complete steps.
        end_bytes: the allocated bytes at the end of each complete step.
        peak_bytes: the peak of each complete step, in bytes.
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
    outliving = [block for block in blocks if FIRST_STEP <= block.step < min(block.until, last)]
    alive = [block for block in outliving if block.until == last]
    kept_bytes, lived_bytes = (sum(block.size_bytes for block in some) for some in (alive, outliving))
    steps = sorted({block.step for block in alive})
    if len(steps) < steps_needed or 2 * kept_bytes <= lived_bytes:
        return []
    oldest, newest = steps[0], steps[-1]
    if steps == list(range(oldest, last)) and min(block.step for block in outliving) < oldest:
        return []  # a queue: it frees older blocks
    quiet = last - 1 - newest
    if has_stopped(quiet, longest_pause_steps=max(_differences(steps)), growing_steps=newest - oldest):
        return []
    half = (last - oldest) // 2
    earlier, later = sum(step < oldest + half for step in steps), sum(step >= last - half for step in steps)
    return [] if is_slowing(earlier, later + 1) else alive  # a difference of one step is chance


def _rise_of_replaced(blocks: Sequence[StepBlock[LineT]], end_bytes: Sequence[int], peak_bytes: Sequence[int]) -> int:
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
