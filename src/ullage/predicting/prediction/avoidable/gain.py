"""Compute the memory peaks of a run that frees some blocks earlier or does not allocate them.

The computation replays the recorded allocations with some frees moved. If a replay without changes does not reproduce
the run, only allocated bytes are computed, from the recorded sizes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ullage.predicting.prediction.measurement.placement import replayed
from ullage.predicting.prediction.measurement.trace import Levels
from ullage.predicting.prediction.observation.role import Lives
from ullage.recorded.program import Op, Program
from ullage.recorded.rebuild import UNBOUNDED_BYTES, Rebuilt


@dataclass(frozen=True, slots=True, kw_only=True)
class PeaksWithout:
    """The memory peaks that a run would have without some avoidable memory blocks. None means that a peak is
    unknown.
    """

    allocated_bytes: int
    reserved_bytes: int | None


class Gains:
    """Compute the memory peaks of a run that frees some blocks earlier or does not allocate them."""

    def __init__(
        self, lives: Lives, levels: Levels, device: int, rebuilt: Rebuilt | None, *, placement: str, ran_out: bool
    ) -> None:
        self._lives = lives
        self._levels = levels
        self._placement = placement
        self._rebuilt: Rebuilt | None = None
        self._born = lives.born[lives.entries["device"] == device]
        if rebuilt is None or ran_out or len(self._born) != int((rebuilt.program.op == Op.ALLOCATE).sum()):
            return
        here = replayed(rebuilt, placement)
        same = here.peak.allocated_bytes == int(levels.allocated.max())
        if same and here.peak.reserved_bytes == int(levels.reserved.max()) and not here.ran_out:
            self._rebuilt = rebuilt

    def with_ends(self, ends: Mapping[int, int]) -> PeaksWithout:
        """Return the memory peaks if blocks were freed at other times. `ends` maps each block to the allocator event
        after which it is freed.
        """
        return self.changed(ends, ())

    def without(self, blocks: Iterable[int]) -> PeaksWithout:
        """Return the memory peaks if the given blocks were not allocated."""
        return self.changed({}, tuple(blocks))

    def changed(self, ends: Mapping[int, int], removed: Sequence[int]) -> PeaksWithout:
        """Return the memory peaks with some blocks freed at other times and some blocks not allocated.

        Args:
            ends: maps each block to the allocator event after which it is freed.
            removed: the blocks that are not allocated.
        """
        if self._rebuilt is not None:
            roomy = replace(self._rebuilt, room_bytes=UNBOUNDED_BYTES)
            done = replayed(replace(roomy, program=self._changed(roomy.program, ends, removed)), self._placement)
            if not done.ran_out and not done.broken:
                return PeaksWithout(allocated_bytes=done.peak.allocated_bytes, reserved_bytes=done.peak.reserved_bytes)
        return PeaksWithout(allocated_bytes=self._summed(ends, removed), reserved_bytes=None)

    def reserved_with_expandable_segments(self) -> int | None:
        """Return the peak of reserved bytes with expandable segments, or None if it cannot be computed."""
        if self._rebuilt is None:
            return None
        settings = replace(self._rebuilt.settings, expandable_segments=True)
        done = replayed(replace(self._rebuilt, settings=settings, room_bytes=UNBOUNDED_BYTES), self._placement)
        return None if done.ran_out or done.broken else done.peak.reserved_bytes

    def _summed(self, ends: Mapping[int, int], removed: Sequence[int]) -> int:
        levels, lives = self._levels, self._lives
        change = np.zeros(len(levels.index) + 1, np.int64)
        for block, after in [*ends.items(), *((block, int(lives.born[block]) - 1) for block in removed)]:
            size = int(lives.entries["size"][block])
            change[np.searchsorted(levels.index, after + 1)] -= size
            change[np.searchsorted(levels.index, lives.died[block])] += size
        return int((levels.allocated + np.cumsum(change[:-1])).max(initial=0))

    def _changed(self, program: Program, ends: Mapping[int, int], removed: Sequence[int]) -> Program:
        made = np.flatnonzero(program.op == Op.ALLOCATE)
        place_of = {int(born): int(made[number]) for number, born in enumerate(self._born.tolist())}

        def keys_of(blocks: Iterable[int]) -> list[int]:
            return [int(program.key[place_of[int(self._lives.born[block])]]) for block in blocks]

        following = np.searchsorted(self._born, list(ends.values()), side="right")
        places = np.append(made, len(program))[following]
        moved, gone = keys_of(ends), keys_of(removed)
        stays = ~((program.op == Op.FREE) & np.isin(program.key, moved))
        stays &= ~(np.isin(program.op, (Op.ALLOCATE, Op.FREE, Op.RECORD_STREAM)) & np.isin(program.key, gone))
        order = np.concatenate([2 * np.flatnonzero(stays) + 1, 2 * places])
        chosen = np.argsort(order, kind="stable")

        def column(of_program: np.ndarray, of_frees: object) -> np.ndarray:
            added = np.broadcast_to(np.asarray(of_frees, np.int64), len(moved))
            return np.ascontiguousarray(np.concatenate([of_program[stays], added])[chosen])

        return replace(
            program,
            op=column(program.op, int(Op.FREE)),
            key=column(program.key, moved),
            size=column(program.size, 0),
            stream=column(program.stream, 0),
        )
