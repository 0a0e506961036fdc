"""The rule that decides whether memory grows from step to step, for `predict`, `explain` and `Monitor`.

If batches vary in size, the memory at the end of a step varies by chance. But chance does not keep blocks of several
steps alive: a batch or a loss is freed when the next one replaces it. So a source line grows if two conditions hold:
blocks that it allocated in several different steps stay alive, and it continues to keep blocks.

Growth has stopped if the line has kept nothing for longer than its longest pause. Growth slows down if later steps keep
fewer blocks than earlier ones. A queue or a list that is cleared frees its blocks later; that is a repeating pattern
and not growth. If each block is replaced by a larger one, the bytes have to rise evenly and over more steps.

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
"""The first training step whose blocks count as memory growth. Step 1 allocates memory that stays, such as optimizer
state.
"""
LEAST_RISES: Final = 3
"""The number of different training steps in which a source line has to keep blocks before it is reported as growing."""
LEAST_RISES_IF_EVEN: Final = 2
"""The number that replaces `LEAST_RISES` if memory rose very evenly over the last steps."""
LEAST_RISES_IN_BYTES: Final = 8
"""The number of training steps over which the bytes of a source line have to rise, if its number of blocks does not
rise. A rise over fewer steps may come from longer batches alone.
"""
LEAST_BYTES_PER_STEP: Final = 8 << 10
"""Memory growth of at least this many bytes per training step is always reported. Slower growth is reported once its
total is large enough.
"""
# A rise of 8 KiB per step is reported after 512 steps, at a total of 4 MiB.
_NOTICEABLE_STEPS: Final = 512
EVEN: Final = 0.4
"""The smallest allowed ratio of the rise in one training step to the mean rise. It applies to memory that grows in
bytes but not in blocks, because such growth has to be even.
"""
EVEN_AMONG_MANY: Final = 0.75
"""The value that replaces `EVEN` for a source line with more than 8 blocks. If only some of these blocks are replaced
by larger blocks, bytes rise by chance.
"""
FEW_BLOCKS: Final = 8
"""The largest number of blocks of a source line for which `EVEN` applies. For more blocks, `EVEN_AMONG_MANY`
applies.
"""
_VERY_EVEN: Final = 0.95
SLOWING_RATIO: Final = 0.7
"""Memory growth slows down if later growth divided by earlier growth is below this number. Both are measured over the
same number of training steps. An example is a cache that fills.
"""
# Growth has stopped once a quarter of the steps since the first rise have passed without a rise.
_STOPPED_ONE_IN: Final = 4
PEAK_RATIO: Final = 2.5
"""Longer batches explain the memory growth if the peak rises by at least this number times the rise of the kept bytes.
A leak has a ratio of up to 2: `state = torch.cat([state, new])` holds the state twice at its peak.
"""


def is_noticeable(bytes_per_step: float, total_bytes: int, least_bytes_per_step: int = LEAST_BYTES_PER_STEP) -> bool:
    """Return whether memory growth is fast enough, or large enough in total, to be reported."""
    return bytes_per_step >= least_bytes_per_step or total_bytes >= _NOTICEABLE_STEPS * least_bytes_per_step


def is_even(rises: Sequence[int], share: float) -> bool:
    """Return whether all rises of memory are positive and close to their mean.

    A rise may be as small as the mean times `share`, and as large as the mean divided by `share`.
    """
    mean = sum(rises) / len(rises)
    return min(rises) >= share * mean > 0 and max(rises) * share <= mean


def even_share(blocks: int) -> float:
    """Return the smallest allowed ratio of the rise in one step to the mean rise.

    Args:
        blocks: the number of blocks of the source line.
    """
    return EVEN if blocks <= FEW_BLOCKS else EVEN_AMONG_MANY


def is_slowing(earlier: float, later: float) -> bool:
    """Return whether memory growth slows down.

    Args:
        earlier: the number of steps that kept blocks in the earlier half of a period.
        later: the number of steps that kept blocks in the later half of the period.
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
    """Return whether longer batches explain the memory growth. They do if the peak rises much more than the kept
    bytes.
    """
    return peak_rise_bytes >= PEAK_RATIO * kept_rise_bytes


class StepBlock(NamedTuple, Generic[LineT]):
    """A block that is still allocated at the end of the training step that allocated it."""

    line: LineT
    step: int
    """The training step in which the block was allocated. The first step is 1."""
    until: int
    """The last training step at whose end the block is still allocated."""
    size_bytes: int
    key: int
    """A number that identifies the block for the caller, such as its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing(Generic[LineT]):
    """The bytes that each training step keeps on average, and the source lines that keep them."""

    bytes_per_step: int
    line: LineT
    """The source line that keeps the most bytes."""
    line_bytes_per_step: int
    kept: dict[LineT, list[StepBlock[LineT]]]
    """Maps each source line to the blocks that it has kept."""


def growing(
    blocks: Sequence[StepBlock[LineT]], end_bytes: Sequence[int], peak_bytes: Sequence[int]
) -> Growing[LineT] | None:
    """Return the growth of memory over the training steps; None if it is too small to report.

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
