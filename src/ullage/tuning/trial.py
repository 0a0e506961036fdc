"""A recorded run tried again under other settings or in other room. It knows no search: only one trial at a time."""

import math
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage._units import MIB
from ullage.allocator.replay import Device, Replay, replay
from ullage.program import Op, Program
from ullage.rebuild import UNBOUNDED_BYTES, Rebuilt
from ullage.settings import Settings

ROOM_STEP_BYTES: Final = 2 * MIB
"""How exactly the smallest room is found."""
_GUESSES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a run does under some settings."""

    text: str
    """As it stands in PYTORCH_ALLOC_CONF; empty: nothing is set."""
    fits: bool
    ooms: int
    """Requests that fail."""
    retries: int
    """How often the cache was given back to make room."""
    peak_reserved_bytes: int
    driver_calls: int
    reached: float
    """How much of the run was done when the first request failed, from 0 to 1; 1 where none did."""

    @property
    def options(self) -> int:
        """How many options are set."""
        return self.text.count(":") - self.text.count("[") if self.text else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A recorded run, to be repeated.

    A request that failed is freed again at once where it succeeds: the program had nothing of it.
    """

    program: Program
    allocations: int
    start_bytes: int
    """Reserved before recording began; it stays where it is under all settings."""

    @classmethod
    def of(cls, rebuilt: Rebuilt) -> "Run":
        """Make it of a program."""
        program = rebuilt.program
        return cls(
            program=program,
            allocations=int(np.count_nonzero(program.op == Op.ALLOCATE)),
            start_bytes=sum(size for segment in program.start for size, *_ in segment.blocks),
        )

    def attempt(self, text: str, settings: Settings, room_bytes: int) -> Trial:
        """Run it once."""
        done = replay(self.program, settings, Device(total_bytes=room_bytes))
        failed = sorted([*done.oom_ops.tolist(), *done.rejected_ops.tolist()])
        ended = failed[0] if failed else done.done if done.broken else len(self.program)
        return Trial(
            text=text,
            fits=_fits(done),
            ooms=len(failed),
            retries=done.retries,
            peak_reserved_bytes=done.peak.reserved_bytes,
            driver_calls=done.driver_calls,
            reached=ended / max(1, len(self.program)),
        )

    def smallest_room(self, settings: Settings, *, deadline: float = math.inf) -> tuple[int, bool] | None:
        """Find the least that the allocator must be able to reserve, in steps of `ROOM_STEP_BYTES`.

        With it no request fails and with one step less one does; both are replayed. None where the run fails in any.

        Args:
            settings: what is set.
            deadline: when to end (time.monotonic()): the run fits in what is returned then, and perhaps in less.

        Returns:
            The bytes, and whether less is known to fail.
        """
        free = replay(self.program, settings, Device(total_bytes=UNBOUNDED_BYTES))
        low = (max(free.peak.active_bytes, self.start_bytes) - 1) // ROOM_STEP_BYTES  # less cannot hold it
        high = max(low + 1, -(-free.peak.reserved_bytes // ROOM_STEP_BYTES))
        for _ in range(_GUESSES):  # a share of the room may be all that is allowed
            if self._fits_in(settings, high):
                break
            low, high = high, high + max(1, high // 4)
        else:
            return None
        while high - low > 1 and time.monotonic() < deadline:
            middle = (low + high) // 2
            low, high = (low, middle) if self._fits_in(settings, middle) else (middle, high)
        return high * ROOM_STEP_BYTES, high - low == 1

    def _fits_in(self, settings: Settings, steps: int) -> bool:
        return _fits(replay(self.program, settings, Device(total_bytes=steps * ROOM_STEP_BYTES), stop_after_ooms=1))


def _fits(done: Replay) -> bool:
    return not done.ran_out and not done.broken
