"""Simulates a recorded run with other allocator settings or another memory capacity."""

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
"""The step size in bytes of the search for the smallest sufficient memory capacity."""
_MOST_ENLARGEMENTS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of simulating a run with certain allocator settings."""

    text: str
    """The simulated settings as a value for PYTORCH_CUDA_ALLOC_CONF. Empty if there are none."""
    fits: bool
    ooms: int
    """The number of allocations that fail."""
    retries: int
    """The number of times that the allocator freed its cache to satisfy an allocation."""
    peak_reserved_bytes: int
    driver_calls: int
    reached: float
    """The fraction of the run before the first failed allocation, from 0 to 1."""

    @property
    def options(self) -> int:
        """The number of allocator options that are set."""
        return self.text.count(":") - self.text.count("[") if self.text else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A recorded run that can be simulated with other settings."""

    program: Program
    allocations: int
    start_bytes: int
    """The bytes that were already reserved when recording began."""

    @classmethod
    def of(cls, rebuilt: Rebuilt) -> "RecordedRun":
        """Create a run that can be simulated from its reconstructed allocator operations."""
        program = rebuilt.program
        return cls(
            program=program,
            allocations=int(np.count_nonzero(program.op == Op.ALLOCATE)),
            start_bytes=sum(segment.reserved_bytes for segment in program.start),
        )

    def attempt(self, text: str, settings: Settings, room_bytes: int) -> Trial:
        """Simulate the recorded run once."""
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
        """Find the smallest memory capacity with which the run succeeds, in multiples of `ROOM_STEP_BYTES`.

        With the returned capacity no allocation fails; with one step less, one does. Return None if the run fails with
        any capacity.

        Args:
            settings: the allocator's settings.
            deadline: when to end the search (time.monotonic()). The run then fits in the returned capacity, and perhaps
                in less.

        Returns:
            The bytes, and whether a smaller capacity is known to fail.
        """
        free = replay(self.program, settings, ReplayDevice(total_bytes=UNBOUNDED_BYTES))
        # A smaller capacity cannot hold the run.
        low = (max(free.peak.active_bytes, self.start_bytes) - 1) // ROOM_STEP_BYTES
        high = max(low + 1, -(-free.peak.reserved_bytes // ROOM_STEP_BYTES))
        for _ in range(_MOST_ENLARGEMENTS):  # The settings may allow only a fraction of the capacity.
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
