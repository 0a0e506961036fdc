"""The findings of `ullage.Monitor`, and their text. The module `judge` makes the findings."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ullage.base.units import text_of_bytes

ENOUGH_STEPS: Final = 50
"""The number of training steps within which the monitor finds a leak."""


class FindingKind(StrEnum):
    """The reason why memory has risen."""

    LEAK = "leak"
    """The memory that stays allocated after each step grows from step to step."""
    GROWTH_ENDED = "growth that ended"
    """Memory grew from step to step and then stopped growing. Examples are a buffer that is full and a list that was
    cleared.
    """
    WARM_UP = "warm-up"
    """Memory rose once and then stayed at that level. Examples are optimizer state, a workspace, and a copy of the
    weights.
    """
    LONGER_BATCH = "longer batch"
    """The peak of memory rose. The memory that stays allocated after each step did not."""
    FRAGMENTATION = "fragmentation"
    """Reserved memory rose, but the peak of allocated memory did not. The unused reserved memory is in pieces that are
    too small to be used.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorFinding:
    """One finding of a `Monitor`: which memory rose, since which step, and why."""

    kind: FindingKind
    """The reason why memory has risen."""
    phase: str
    """The phase in which memory rose: "train", or the name that was passed to `Monitor.phase`."""
    step: int
    """The training step at which the monitor made the finding. All phases are counted together, and the first step
    is 1.
    """
    since_step: int
    """The step since which memory rose."""
    until_step: int | None = None
    """The step at which the monitor found that the growth had stopped. None if memory still grows."""
    bytes_per_step: int = 0
    """The average growth in bytes per step. It is 0 if memory does not grow from step to step."""
    total_bytes: int = 0
    """The total growth in bytes."""
    line: str | None = None
    """The line of the user's code that allocated most of the additional memory, such as "project/train.py:41". None if
    it is unknown.
    """
    lines: tuple[tuple[str, int], ...] = ()
    """All source lines whose memory grows, each with its growth in bytes per step. The fastest line comes first."""
    holder: str | None = None
    """The path from a variable to the object that holds the additional memory. None if the monitor did not search for
    it or did not find it.
    """

    @property
    def is_leak(self) -> bool:
        return self.kind is FindingKind.LEAK

    @property
    def is_urgent(self) -> bool:
        """Whether the user should act on this finding: it is a leak or fragmentation."""
        return self.kind in (FindingKind.LEAK, FindingKind.FRAGMENTATION)

    def __str__(self) -> str:
        rate, total = text_of_bytes(self.bytes_per_step), text_of_bytes(self.total_bytes)
        where = f", allocated at {self.line}" if self.line else ""
        held = f", held by {self.holder}" if self.holder else ""
        match self.kind:
            case FindingKind.LEAK:
                what = f"every {self.phase} step keeps {rate} more since step {self.since_step}{where}{held}"
            case FindingKind.GROWTH_ENDED:
                what = (
                    f"memory after {self.phase} steps grew by {total} from step {self.since_step} on and has stopped "
                    f"growing by step {self.until_step}{where}{held}"
                )
            case FindingKind.WARM_UP:
                what = (
                    f"{total} more stay allocated after {self.phase} steps since step {self.since_step}, without "
                    f"further growth up to step {self.step}"
                )
            case FindingKind.LONGER_BATCH:
                what = f"the peak rose by {total}; memory that stays allocated after {self.phase} steps did not rise"
            case FindingKind.FRAGMENTATION:
                what = (
                    f"{total} more are reserved than at step {self.since_step}, but the peak of allocated memory has "
                    "not risen: the unused part is in pieces too small to be used "
                    "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may help)"
                )
        return f"{self.kind} at step {self.step}: {what}"
