"""What the peaks become when blocks are let go of earlier: exact, by a replay in the allocator's model.

A block is larger than what was asked for where a free piece was not worth splitting, so that even the sum of what is
allocated depends on what is free: the run's own program is replayed with the frees moved. Where a replay does not
reproduce the run itself, the sum over the journal is taken, and nothing is said of reserved memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ullage.prediction.measurement.placement import replayed
from ullage.prediction.measurement.trace import Levels
from ullage.prediction.observation.role import Lives
from ullage.program import Op, Program
from ullage.rebuild import UNBOUNDED_BYTES, Rebuilt


@dataclass(frozen=True, slots=True, kw_only=True)
class PeaksWithout:
    """The peaks of a run in which blocks are let go of earlier; None where nobody can say."""

    allocated_bytes: int
    reserved_bytes: int | None


class Gains:
    """Computes peaks without blocks; `cuts` says for numbers of blocks after which entry of the journal they end."""

    def __init__(
        self, lives: Lives, levels: Levels, device: int, rebuilt: Rebuilt | None, *, placement: str, ran_out: bool
    ) -> None:
        """Take a finished run.

        Args:
            lives: all blocks.
            levels: of the device.
            device: the device's number.
            rebuilt: the device's program; None where its history is not whole.
            placement: the driver that chose addresses.
            ran_out: whether memory ran out: then a replay goes on where the run did not.
        """
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

    @property
    def is_replayed(self) -> bool:
        """Whether a replay reproduces the run."""
        return self._rebuilt is not None

    def without(self, cuts: Mapping[int, int]) -> PeaksWithout:
        """Return the peaks when blocks end after an entry of the journal instead of later."""
        if self._rebuilt is not None:
            roomy = replace(self._rebuilt, room_bytes=UNBOUNDED_BYTES)
            done = replayed(replace(roomy, program=self._with_cuts(roomy.program, cuts)), self._placement)
            if not done.ran_out and not done.broken:
                return PeaksWithout(allocated_bytes=done.peak.allocated_bytes, reserved_bytes=done.peak.reserved_bytes)
        return PeaksWithout(allocated_bytes=self._summed(cuts), reserved_bytes=None)

    def _summed(self, cuts: Mapping[int, int]) -> int:
        levels = self._levels
        change = np.zeros(len(levels.index) + 1, np.int64)
        for block, cut in cuts.items():
            low, high = np.searchsorted(levels.index, [cut + 1, min(int(self._lives.died[block]), 1 << 62)])
            size = int(self._lives.entries["size"][block])
            change[low] -= size
            change[high] += size
        return int((levels.allocated + np.cumsum(change[:-1])).max(initial=0))

    def _with_cuts(self, program: Program, cuts: Mapping[int, int]) -> Program:
        made = np.flatnonzero(program.op == Op.ALLOCATE)
        at = {int(born): number for number, born in enumerate(self._born.tolist())}
        keys, places = [], []
        for block, cut in cuts.items():
            keys.append(int(program.key[made[at[int(self._lives.born[block])]]]))
            following = int(np.searchsorted(self._born, cut, side="right"))
            places.append(int(made[following]) if following < len(made) else len(program))
        stays = ~((program.op == Op.FREE) & np.isin(program.key, keys))
        order = np.concatenate([2 * np.flatnonzero(stays) + 1, 2 * np.asarray(places, np.int64)])
        chosen = np.argsort(order, kind="stable")

        def column(of_program: np.ndarray, of_frees: object) -> np.ndarray:
            added = np.broadcast_to(np.asarray(of_frees, np.int64), len(keys))
            return np.ascontiguousarray(np.concatenate([of_program[stays], added])[chosen])

        return replace(
            program,
            op=column(program.op, int(Op.FREE)),
            key=column(program.key, keys),
            size=column(program.size, 0),
            stream=column(program.stream, 0),
        )
