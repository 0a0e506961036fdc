"""The memory that stays allocated after the steps of a phase, as floors: its minimum over 8 steps, 32, 128, ...

A floor is the level after the shortest batch, so varying lengths hide no growth; the number of live blocks, which
does not vary with lengths, is a second indicator. A series has a fixed size, however many steps it takes. This module
does not use torch.
"""

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from ullage.base.growth import EVEN, is_even, is_slowing

CHUNK_STEPS: Final = 8
WIDENING: Final = 4
"""The number of floors of one level that make one floor of the next."""
LEVELS: Final = 6
_KEPT_FLOORS: Final = 8
_NO_SAMPLE: Final = 1 << 62
_JUMP_RATIO: Final = 2
"""The ratio to the next largest rise above which a rise is a single event amid the growth."""
_EVEN_RISES: Final = 4
_LASTING_ONE_IN: Final = 3
"""Even last rises of at least one part in this many of the earlier ones mean growth that goes on after other growth has
ended."""
_RISES_OF_A_CYCLE: Final = 3
"""The number of rises in blocks before a fall from which on the fall ends a cycle that could be taken for a leak."""
_RECENT_SAMPLES: Final = 4
_STEPS_OF_A_LONG_VISIT: Final = 1024
"""The number of steps of one visit from which on growth is reported before the visit ends."""


def width_of(level: int) -> int:
    """Return the number of steps of a floor."""
    return int(CHUNK_STEPS * WIDENING**level)


@dataclass(frozen=True, slots=True)
class Floor:
    """The minimum that stayed allocated over some steps, and how much the phase's own steps have added until then."""

    bytes: int
    blocks: int
    step: int
    """The step, counted over all phases, at which the floor was complete."""
    phase_steps: int
    """The number of steps of the phase until then."""
    inside_bytes: int
    inside_blocks: int
    """The blocks added between samples of the same visit to the phase, summed from the beginning."""
    inside_steps: int
    all_bytes: int
    all_blocks: int
    """The same, summed over all phases."""


class Series:
    """The floors of one phase, at several widths."""

    def __init__(self, of_all: list[int]) -> None:
        """Begin a series.

        Args:
            of_all: the bytes and blocks that were added inside of any phase, which all series of a monitor share.
        """
        self._of_all = of_all
        self.floors: tuple[deque[Floor], ...] = tuple(deque(maxlen=_KEPT_FLOORS) for _ in range(LEVELS))
        self.steps = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=_RECENT_SAMPLES)
        self._tops: list[tuple[int, int]] = [(0, 0)] * LEVELS
        """The highest bytes and blocks of each level from which floors fell back (a list cleared every epoch)."""
        self._bytes = self._blocks = _NO_SAMPLE
        self._closed = self._filled = 0
        self._inside_bytes = self._inside_blocks = self._inside_steps = 0
        self._last = (0, 0)
        self._visit_began: int | None = None
        """The number of the phase's steps when its present visit began; None for steps outside of `Monitor.phase`."""

    def begin_visit(self, n_bytes: int, blocks: int) -> None:
        """Record the level when a visit to the phase begins."""
        self._visit_began = self.steps
        self._last = n_bytes, blocks

    def add(self, n_bytes: int, blocks: int, steps: int, *, is_first: bool) -> bool:
        """Add a sample, `steps` steps after the last, `is_first` in a visit; return whether a floor is complete."""
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
        """Complete a floor, and those of wider levels that are due; return how many levels have a new floor."""
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
        """Add a floor; if it falls back, record the level that growth had reached."""
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
        """Return how many of the last floors rose, and whether in blocks, preferred from `enough` rises on."""
        by_blocks, by_bytes = self.rises_in_blocks(level), self.rises_in_bytes(level)
        is_by_blocks = by_blocks >= min(enough, by_bytes)
        return by_blocks if is_by_blocks else by_bytes, is_by_blocks

    def is_new(self, level: int, rises: int, *, by_blocks: bool, further: float = -1) -> bool:
        """Tell whether growth exceeds by more than one rise the level from which it has fallen back before.

        Args:
            level: the level of the floors.
            rises: the number of last floors that rose.
            by_blocks: whether blocks are compared, or bytes.
            further: the number of future rises that are assumed.
        """
        floors, top = self.floors[level], self._tops[level][by_blocks]
        values = [one.blocks if by_blocks else one.bytes for one in (floors[-rises - 1], floors[-1])]
        return values[1] + further * (values[1] - values[0]) / rises >= top or not top

    def goes_on(self, level: int, *, by_blocks: bool) -> bool:
        """Tell whether the last samples, or floors of the next narrower level, still rise: a buffer may be full."""
        if level:
            floors = list(self.floors[level - 1])[-WIDENING:]
            values = [one.blocks if by_blocks else one.bytes for one in floors]
        else:
            values = [sample[by_blocks] for sample in self._recent]
        half = len(values) // 2
        return max(values[half:]) > min(values[:half])

    def rises_in_blocks(self, level: int) -> int:
        """Return how many of the last floors each have more blocks than the one before."""
        return _trailing([one.blocks for one in self.floors[level]])

    def rises_in_bytes(self, level: int) -> int:
        """Return how many of the last floors each have more bytes than the one before, evenly, and no fewer blocks."""
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
        """Tell whether later rises in blocks, and the last, are smaller than earlier ones: a cache that fills up."""
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
        """Tell whether all of the growth came in the present visit, at whose end a list of predictions is cleared."""
        began = self._visit_began
        return (
            began is not None
            and self.floors[level][-rises - 1].phase_steps >= began
            and self.steps - began < _STEPS_OF_A_LONG_VISIT
        )

    def came_inside(self, level: int, rises: int) -> bool:
        """Tell whether at least half of the rise came in the phase's own steps.

        Growth of no phase's steps is the visited phase's: what it keeps at its end.
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
        """Return the rate of the last rises: that of their slower half, as a batch of chance moves either."""
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
