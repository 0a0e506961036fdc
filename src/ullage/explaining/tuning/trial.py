"""A recorded run, tried again under other settings or in other room."""

import math
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage.recorded.allocator.replay import Replay, ReplayDevice, replay
from ullage.recorded.program import Op, Program
from ullage.recorded.rebuild import UNBOUNDED_BYTES, Rebuilt
from ullage.recorded.settings import LARGE_UNIT_BYTES, Settings

ROOM_STEP_BYTES: Final = LARGE_UNIT_BYTES
"""Precision of the search for the least room."""
_MOST_ENLARGEMENTS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The outcome of a run under some settings."""

    text: str
    """The text for PYTORCH_CUDA_ALLOC_CONF; empty: nothing is set."""
    fits: bool
    ooms: int
    """Number of requests that fail."""
    retries: int
    """Times the cache was freed to make room."""
    peak_reserved_bytes: int
    driver_calls: int
    reached: float
    """Share of the run that was done when the first request failed, from 0 to 1; 1 where none did."""

    @property
    def options(self) -> int:
        """Number of options that are set."""
        return self.text.count(":") - self.text.count("[") if self.text else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A recorded run that can be repeated.

    A request that failed is freed again at once where it succeeds: the program had nothing of it.
    """

    program: Program
    allocations: int
    start_bytes: int
    """Bytes reserved before recording began; they stay as they are under all settings."""

    @classmethod
    def of(cls, rebuilt: Rebuilt) -> "RecordedRun":
        """Create it from a program."""
        program = rebuilt.program
        return cls(
            program=program,
            allocations=int(np.count_nonzero(program.op == Op.ALLOCATE)),
            start_bytes=sum(segment.reserved_bytes for segment in program.start),
        )

    def attempt(self, text: str, settings: Settings, room_bytes: int) -> Trial:
        """Run the program once."""
        done = replay(self.program, settings, ReplayDevice(total_bytes=room_bytes))
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
        """Find the least room that the allocator needs, in steps of `ROOM_STEP_BYTES`.

        With it no request fails and with one step less one does; both are replayed. None where the run fails in any.

        Args:
            settings: the allocator's settings.
            deadline: when to end (time.monotonic()): the run fits in what is returned then, and perhaps in less.

        Returns:
            The bytes, and whether less is known to fail.
        """
        free = replay(self.program, settings, ReplayDevice(total_bytes=UNBOUNDED_BYTES))
        low = (max(free.peak.active_bytes, self.start_bytes) - 1) // ROOM_STEP_BYTES  # less cannot hold it
        high = max(low + 1, -(-free.peak.reserved_bytes // ROOM_STEP_BYTES))
        for _ in range(_MOST_ENLARGEMENTS):  # a share of the room may be all that is allowed
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
        return _fits(
            replay(self.program, settings, ReplayDevice(total_bytes=steps * ROOM_STEP_BYTES), stop_after_ooms=1)
        )


def _fits(done: Replay) -> bool:
    return not done.ran_out and not done.broken
