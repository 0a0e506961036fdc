"""Computes the lowest allocated memory over 8 training steps, over 32 steps, over 128 steps, and so on.

The minimum belongs to the shortest batch, so batches of varying length do not hide growth. This module does not use
torch.
"""

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from ullage.base.growth import EVEN, EVEN_AMONG_MANY, is_even, is_slowing

CHUNK_STEPS: Final = 8
WIDENING: Final = 4
"""The number of memory minimums that are merged: four minimums over 8 training steps give one over 32 steps."""
LEVELS: Final = 6
_KEPT_FLOORS: Final = 8
_NO_SAMPLE: Final = 1 << 62
# The largest rise is ignored as a single event if it is more than this many times the second largest rise.
_JUMP_RATIO: Final = 2
_EVEN_RISES: Final = 4
# The N in this rule: growth is not slowing if its latest rises are even and at least 1/N of its earlier rises. In that
# case, the earlier rises may come from different growth that has ended.
_LASTING_ONE_IN: Final = 3
# The number of consecutive rises in the number of blocks after which a fall shows a cycle. A cycle is not a leak.
_RISES_OF_A_CYCLE: Final = 3
_RECENT_SAMPLES: Final = 4
_HISTORY_RATIO: Final = 1.4
_LONG_AGO: Final = 16
_AGO: Final = 4
# The least number of blocks that were added long ago, so that a slower pace since then has a cause.
_ENOUGH_BLOCKS: Final = 8
# The length of a `Monitor.phase` context, in steps, from which growth is reported before the context ends. In a shorter
# context, the monitor waits for the end.
_STEPS_OF_A_LONG_VISIT: Final = 1024


def width_of(level: int) -> int:
    """Return the number of training steps that one memory minimum covers: 8 at level 0, 32 at level 1, and so on."""
    return int(CHUNK_STEPS * WIDENING**level)


@dataclass(frozen=True, slots=True)
class Floor:
    """The lowest allocated memory over some training steps."""

    bytes: int
    blocks: int
    step: int
    """The index of the training step at which the measurement ended, counted since the monitor started."""
    phase_steps: int
    """The number of training steps in the `Monitor.phase` context up to the end of the measurement."""
    inside_bytes: int
    inside_blocks: int
    """The number of live memory blocks that one `Monitor.phase` context has added so far."""
    inside_steps: int
    all_bytes: int
    all_blocks: int
    """The number of live memory blocks that all `Monitor.phase` contexts together have added so far."""


class Series:
    """The lowest allocated memory of a phase over every 8 steps, every 32 steps, and so on."""

    def __init__(self, of_all: list[int]) -> None:
        """Create an empty series for one phase.

        Args:
            of_all: the bytes and the blocks that all phases together have added so far. All series of a monitor share
                this list.
        """
        self._of_all = of_all
        self.floors: tuple[deque[Floor], ...] = tuple(deque(maxlen=_KEPT_FLOORS) for _ in range(LEVELS))
        self.steps = 0
        # Steps of this phase, each at least 1.4 times the one before, and the blocks that were allocated then.
        self._history: list[tuple[int, int]] = [(1, 0)]
        self._recent: deque[tuple[int, int]] = deque(maxlen=_RECENT_SAMPLES)
        self._tops: list[tuple[int, int]] = [(0, 0)] * LEVELS
        self._bytes = self._blocks = _NO_SAMPLE
        self._closed = self._filled = 0
        self._inside_bytes = self._inside_blocks = self._inside_steps = 0
        self._last = (0, 0)
        self._visit_began: int | None = None

    def begin_visit(self, n_bytes: int, blocks: int) -> None:
        """Begin a `Monitor.phase` context. The arguments are the currently allocated bytes and blocks."""
        self._visit_began = self.steps
        self._last = n_bytes, blocks

    def add(self, n_bytes: int, blocks: int, steps: int, *, is_first: bool) -> bool:
        """Add a measurement of the allocated memory. Return whether the next minimum over 8 steps is complete.

        Args:
            n_bytes: the allocated bytes.
            blocks: the number of allocated blocks.
            steps: the number of training steps since the previous measurement.
            is_first: whether this is the first measurement in the current `Monitor.phase` context.
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
        """Compute the lowest memory over the latest 8 training steps. Return how many minimums were computed.

        Four minimums over 8 steps also give one minimum over 32 steps, and so on for longer ranges.
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
        if self.steps >= _HISTORY_RATIO * self._history[-1][0]:
            self._history.append((self.steps, floor.blocks))
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
        """Return how many times in succession the lowest memory has risen.

        The second result is True if memory is measured in blocks, and False if it is measured in bytes.
        """
        by_blocks, by_bytes = self.rises_in_blocks(level), self.rises_in_bytes(level)
        is_by_blocks = by_blocks >= min(enough, by_bytes)
        return by_blocks if is_by_blocks else by_bytes, is_by_blocks

    def is_new(self, level: int, rises: int, *, by_blocks: bool, further: float = -1) -> bool:
        """Return whether memory has reached its earlier maximum again, or will reach it if it continues to rise.

        Args:
            level: 0 for minimums over 8 steps, 1 for minimums over 32 steps, and so on.
            rises: the number of latest minimums that rose.
            by_blocks: whether blocks are compared instead of bytes.
            further: the number of future rises that are assumed; if negative, the number of last rises to leave out.
        """
        floors, top = self.floors[level], self._tops[level][by_blocks]
        values = [one.blocks if by_blocks else one.bytes for one in (floors[-rises - 1], floors[-1])]
        return values[1] + further * (values[1] - values[0]) / rises >= top or not top

    def goes_on(self, level: int, *, by_blocks: bool) -> bool:
        """Return whether memory still rises in the latest measurements."""
        if level:
            floors = list(self.floors[level - 1])[-WIDENING:]
            values = [one.blocks if by_blocks else one.bytes for one in floors]
        else:
            values = [sample[by_blocks] for sample in self._recent]
        half = len(values) // 2
        return max(values[half:]) > min(values[:half])

    def rises_in_blocks(self, level: int) -> int:
        """Return how many times in succession the minimum of the number of live blocks has risen."""
        return _trailing([one.blocks for one in self.floors[level]])

    def rises_in_bytes(self, level: int) -> int:
        """Return how many times in succession the minimum of allocated memory has risen by similar amounts."""
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
        """Return whether growth in the number of blocks is slowing, as in a cache that becomes full."""
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

    def rises_very_evenly(self, level: int, rises: int) -> bool:
        """Return whether the latest rises in bytes are almost equal, which chance does not cause."""
        values = [one.bytes for one in self.floors[level]][-rises - 1 :]
        return is_even([after - before for before, after in pairwise(values)], EVEN_AMONG_MANY)

    def slows_over_time(self, level: int, rises: int) -> bool:
        """Return whether blocks were added faster long ago: from 1/16 to 1/4 of all steps, compared with now."""
        first, last = self.floors[level][-rises - 1], self.floors[level][-1]
        bounds = [self._before(self.steps // part) for part in (_LONG_AGO, _AGO)]
        if bounds[0][0] == 1 or bounds[0][0] == bounds[1][0]:
            return False
        (begun, fewest), (since, fewer) = bounds
        earlier = (fewer - fewest) / (since - begun)
        now = (last.blocks - first.blocks) / max(1, last.phase_steps - first.phase_steps)
        return fewer - fewest >= _ENOUGH_BLOCKS and is_slowing(earlier, now)

    def _before(self, step: int) -> tuple[int, int]:
        return next(one for one in reversed(self._history) if one[0] <= max(step, 1))

    def may_end_with_the_visit(self, level: int, rises: int) -> bool:
        """Return whether memory grew only inside the current `Monitor.phase` context, and so may be freed at its
        end.
        """
        began = self._visit_began
        return (
            began is not None
            and self.floors[level][-rises - 1].phase_steps >= began
            and self.steps - began < _STEPS_OF_A_LONG_VISIT
        )

    def came_inside(self, level: int, rises: int) -> bool:
        """Return whether at least half of the memory growth occurred inside the phase's `Monitor.phase` contexts."""
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
        """Return the growth in bytes per step. It is the smaller growth of the first and the second half of the
        steps.
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
