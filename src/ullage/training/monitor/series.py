"""The floors of a phase: the minimum of the memory that stays allocated, over 8 steps, 32 steps, 128 steps, ...

A floor is the memory after the shortest batch, so batches of varying length do not hide growth. The number of live
blocks, which does not depend on the length, is a second indicator. The size of a series is fixed, however many steps it
covers. This module does not use torch.
"""

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from ullage.base.growth import EVEN, is_even, is_slowing

CHUNK_STEPS: Final = 8
WIDENING: Final = 4
"""The number of memory minimums that are merged into one. Four minimums over 8 steps make one over 32 steps, and so
on.
"""
LEVELS: Final = 6
_KEPT_FLOORS: Final = 8
_NO_SAMPLE: Final = 1 << 62
_JUMP_RATIO: Final = 2
"""The largest rise is ignored as a single event if it is more than this many times the second largest rise."""
_EVEN_RISES: Final = 4
_LASTING_ONE_IN: Final = 3
"""The N in this rule: growth is not slowing if its latest rises are even and at least 1/N of its earlier rises.

In that case, the earlier rises may come from different growth that has ended.
"""
_RISES_OF_A_CYCLE: Final = 3
"""The number of consecutive rises in the number of blocks after which a fall shows a cycle. A cycle is not a leak."""
_RECENT_SAMPLES: Final = 4
_STEPS_OF_A_LONG_VISIT: Final = 1024
"""The length of a `Monitor.phase` context, in steps, from which growth is reported before the context ends. In a
shorter context, the monitor waits for the end.
"""


def width_of(level: int) -> int:
    """Return the number of steps over which a memory minimum of this level is taken. It is 8 for level 0, then 32, 128,
    ...
    """
    return int(CHUNK_STEPS * WIDENING**level)


@dataclass(frozen=True, slots=True)
class Floor:
    """The lowest allocated memory over some steps of a phase, and how much memory the phase has added until then."""

    bytes: int
    blocks: int
    step: int
    """The number of training steps of all phases at the end of the steps over which the minimum was taken."""
    phase_steps: int
    """The number of steps of this phase at the end of the steps over which the minimum was taken."""
    inside_bytes: int
    inside_blocks: int
    """The number of memory blocks that this phase has added so far. A change between two samples counts only if no
    other phase ran between them.
    """
    inside_steps: int
    all_bytes: int
    all_blocks: int
    """The number of memory blocks that all phases together have added so far. A change counts only between two
    consecutive samples of the same phase.
    """


class Series:
    """The lowest allocated memory of a phase: a minimum over every 8 steps, over every 32 steps, and so on."""

    def __init__(self, of_all: list[int]) -> None:
        """Create an empty series of floors (lowest allocated memory) for one phase.

        Args:
            of_all: the bytes and the blocks that were added between consecutive samples of the same phase, summed over
                all phases. All series of a monitor share this list.
        """
        self._of_all = of_all
        self.floors: tuple[deque[Floor], ...] = tuple(deque(maxlen=_KEPT_FLOORS) for _ in range(LEVELS))
        self.steps = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=_RECENT_SAMPLES)
        self._tops: list[tuple[int, int]] = [(0, 0)] * LEVELS
        """The most bytes and blocks that memory had before it fell, for example when a list was cleared.

        There is one entry for minimums over 8 steps, one for minimums over 32 steps, and so on.
        """
        self._bytes = self._blocks = _NO_SAMPLE
        self._closed = self._filled = 0
        self._inside_bytes = self._inside_blocks = self._inside_steps = 0
        self._last = (0, 0)
        self._visit_began: int | None = None
        """The phase's step count at the beginning of the current `Monitor.phase` context. None for steps outside of
        such contexts.
        """

    def begin_visit(self, n_bytes: int, blocks: int) -> None:
        """Begin a `Monitor.phase` context. The arguments are the bytes and the number of blocks that are allocated
        now.
        """
        self._visit_began = self.steps
        self._last = n_bytes, blocks

    def add(self, n_bytes: int, blocks: int, steps: int, *, is_first: bool) -> bool:
        """Add a sample of memory that was taken `steps` steps after the previous sample. Return whether enough steps
        have been made for a floor (the lowest memory over 8 steps).

        `is_first` is True for the first sample of this phase after another phase.
        """
        if not is_first:
            more_bytes, more_blocks = n_bytes - self._last[0], blocks - self._last[1]
            self._inside_bytes += more_bytes
            self._inside_blocks += more_blocks
            self._inside_steps += steps
            self._of_all[0] += more_bytes
            self._of_all[1] += more_blocks
        self._last = n_bytes, blocks
        self._recent.append((n_bytes, blocks))
        self._bytes = min(self._bytes, n_bytes)
        self._blocks = min(self._blocks, blocks)
        self.steps += steps
        self._filled += steps
        return self._filled >= CHUNK_STEPS

    def close(self, step: int) -> int:
        """Complete the memory minimum over the latest 8 steps. If they are due, complete the minimums over 32 steps,
        128 steps and so on.

        Return how many minimums were completed.
        """
        floor = Floor(
            bytes=self._bytes,
            blocks=self._blocks,
            step=step,
            phase_steps=self.steps,
            inside_bytes=self._inside_bytes,
            inside_blocks=self._inside_blocks,
            inside_steps=self._inside_steps,
            all_bytes=self._of_all[0],
            all_blocks=self._of_all[1],
        )
        self._append(0, floor)
        self._bytes = self._blocks = _NO_SAMPLE
        self._filled = 0
        self._closed += 1
        closed, count = 1, self._closed
        while closed < LEVELS and count % WIDENING == 0:
            count //= WIDENING
            merged = list(self.floors[closed - 1])[-WIDENING:]
            lowest = (min(one.bytes for one in merged), min(one.blocks for one in merged))
            last = merged[-1]
            self._append(closed, replace(last, bytes=lowest[0], blocks=lowest[1]))
            closed += 1
        return closed

    def _append(self, level: int, floor: Floor) -> None:
        """Append a minimum to the other minimums of the same level.

        If it is lower than the one before, record the level from which memory has fallen.
        """
        floors = self.floors[level]
        if floors:
            last, (n_bytes, blocks) = floors[-1], self._tops[level]
            if floor.bytes < last.bytes:
                n_bytes = max(n_bytes, last.bytes)
            if floor.blocks < last.blocks and _trailing([one.blocks for one in floors]) >= _RISES_OF_A_CYCLE:
                blocks = max(blocks, last.blocks)
            self._tops[level] = n_bytes, blocks
        floors.append(floor)

    def growth(self, level: int, enough: int) -> tuple[int, bool]:
        """Return how many of the latest memory minimums rose. Return True with it if blocks rose, and False if bytes
        rose.

        Blocks are preferred if they rose at least `enough` times.
        """
        by_blocks, by_bytes = self.rises_in_blocks(level), self.rises_in_bytes(level)
        is_by_blocks = by_blocks >= min(enough, by_bytes)
        return by_blocks if is_by_blocks else by_bytes, is_by_blocks

    def is_new(self, level: int, rises: int, *, by_blocks: bool, further: float = -1) -> bool:
        """Return whether memory has grown, or would grow with the further rises, at least to the highest level from
        which it has fallen before.

        Args:
            level: the level of the floors.
            rises: the number of last floors that rose.
            by_blocks: whether blocks are compared instead of bytes.
            further: the number of future rises that are assumed; if negative, the number of last rises to leave out.
        """
        floors, top = self.floors[level], self._tops[level][by_blocks]
        values = [one.blocks if by_blocks else one.bytes for one in (floors[-rises - 1], floors[-1])]
        return values[1] + further * (values[1] - values[0]) / rises >= top or not top

    def goes_on(self, level: int, *, by_blocks: bool) -> bool:
        """Return whether memory still rises in the latest samples, or in the minimums over fewer steps. The memory of a
        full buffer no longer rises.
        """
        if level:
            floors = list(self.floors[level - 1])[-WIDENING:]
            values = [one.blocks if by_blocks else one.bytes for one in floors]
        else:
            values = [sample[by_blocks] for sample in self._recent]
        half = len(values) // 2
        return max(values[half:]) > min(values[:half])

    def rises_in_blocks(self, level: int) -> int:
        """Return the number of consecutive latest memory minimums that each have more blocks than the minimum
        before.
        """
        return _trailing([one.blocks for one in self.floors[level]])

    def rises_in_bytes(self, level: int) -> int:
        """Return the number of consecutive latest memory minimums that each have more bytes than the minimum before.

        The rises must be of similar size, and the number of blocks must not fall.
        """
        floors = list(self.floors[level])
        count = _trailing([one.bytes for one in floors])
        while count > 1:
            last = floors[-count - 1 :]
            rises = [after.bytes - before.bytes for before, after in pairwise(last)]
            if is_even(rises, EVEN) and all(after.blocks >= before.blocks for before, after in pairwise(last)):
                break
            count -= 1
        return count

    def is_slowing(self, level: int, rises: int) -> bool:
        """Return whether growth in the number of blocks is slowing, as in a cache that fills.

        It is slowing if the later rises, and the last one, are smaller than the earlier rises.
        """
        values = [one.blocks for one in self.floors[level]][-rises - 1 :]
        steps = [after - before for before, after in pairwise(values)]
        if len(steps) > 2:
            largest, next_largest = sorted(steps)[:-3:-1]
            if largest > _JUMP_RATIO * next_largest:
                steps.remove(largest)
        if len(steps) > _EVEN_RISES:
            earlier, last = steps[:-_EVEN_RISES], steps[-_EVEN_RISES:]
            if 4 * min(last) >= 3 * max(last) and _LASTING_ONE_IN * sum(last) * len(earlier) >= sum(earlier) * len(
                last
            ):
                return False
        half = len(steps) // 2
        before = sum(steps[:half])
        return half > 0 and is_slowing(before, sum(steps[-half:])) and is_slowing(before, half * steps[-1])

    def may_end_with_the_visit(self, level: int, rises: int) -> bool:
        """Return whether all growth came inside the current `Monitor.phase` context.

        Such memory, for example evaluation results, may be freed when the context ends.
        """
        began = self._visit_began
        return (
            began is not None
            and self.floors[level][-rises - 1].phase_steps >= began
            and self.steps - began < _STEPS_OF_A_LONG_VISIT
        )

    def came_inside(self, level: int, rises: int) -> bool:
        """Return whether at least half of the memory growth came in the phase's own steps.

        Memory that grew outside of the steps of all phases is attributed to the phase of the last `Monitor.phase`
        context, because it was kept when that context ended.
        """
        first, last = self.floors[level][-rises - 1], self.floors[level][-1]
        if last.blocks > first.blocks:
            rise = last.blocks - first.blocks
            inside, of_all = last.inside_blocks - first.inside_blocks, last.all_blocks - first.all_blocks
        else:
            rise = last.bytes - first.bytes
            inside, of_all = last.inside_bytes - first.inside_bytes, last.all_bytes - first.all_bytes
        own = last.inside_steps - first.inside_steps
        is_own = own > 0 and 2 * inside * (last.phase_steps - first.phase_steps) >= rise * own
        return is_own or (self._visit_began is not None and 2 * of_all < rise)

    def bytes_per_step(self, level: int, rises: int) -> float:
        """Return the growth of the memory minimums in bytes per step.

        The growth is computed for both halves of the steps, and the smaller result is returned. A single batch then has
        less effect.
        """
        floors = list(self.floors[level])[-rises - 1 :]
        parts = pairwise((floors[0], floors[len(floors) // 2], floors[-1]))
        return min(
            (after.bytes - before.bytes) / max(1, after.phase_steps - before.phase_steps) for before, after in parts
        )


def _trailing(values: list[int]) -> int:
    count = 0
    for before, after in pairwise(reversed(values)):
        if before <= after:
            break
        count += 1
    return count
