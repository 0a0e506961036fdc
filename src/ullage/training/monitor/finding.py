"""The reports of `ullage.Monitor` about memory that has risen."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ullage.base.units import text_of_bytes

ENOUGH_STEPS: Final = 50
"""The number of training steps within which a leak is found."""


class FindingKind(StrEnum):
    """The reason why memory has risen."""

    LEAK = "leak"
    """The memory that stays allocated after each step grows from step to step."""
    GROWTH_ENDED = "growth that ended"
    """Memory grew from step to step and then stopped growing, for example because a buffer is full."""
    WARM_UP = "warm-up"
    """Memory rose once and then stayed constant, for example because the optimizer created its state."""
    LONGER_BATCH = "longer batch"
    """The memory peak rose, but the memory after each step did not."""
    FRAGMENTATION = "fragmentation"
    """Reserved memory rose, but the peak of allocated memory did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorFinding:
    """A report of `Monitor`: which memory rose, since which step, and why."""

    kind: FindingKind
    """The reason why memory has risen."""
    phase: str
    """The phase in which memory rose: "train", or the name that was passed to `Monitor.phase`."""
    step: int
    """The training step at which the rise was found, counted over all phases. The first step is 1."""
    since_step: int
    """The training step since which memory rose."""
    until_step: int | None = None
    """The step at which the growth had stopped, or of the last rise of a warm-up. None if memory still grows."""
    bytes_per_step: int = 0
    """The average growth in bytes per step. It is 0 if memory rose only once."""
    total_bytes: int = 0
    """The total growth in bytes."""
    line: str | None = None
    """The source line that allocated most of the growing memory, such as "project/train.py:41".

    None if the line is unknown.
    """
    lines: tuple[tuple[str, int], ...] = ()
    """All source lines whose memory grows, with the growth in bytes per step, the fastest first."""
    holder: str | None = None
    """The path from a variable to the object whose memory grows. None if the object is unknown."""

    @property
    def is_leak(self) -> bool:
        return self.kind is FindingKind.LEAK

    @property
    def is_urgent(self) -> bool:
        """Whether the user should act, because memory leaks or is fragmented."""
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
                last = f"; the last rise was at step {self.until_step}" if self.until_step != self.since_step else ""
                what = f"{total} more stay allocated after {self.phase} steps since step {self.since_step}{last}"
            case FindingKind.LONGER_BATCH:
                what = f"the peak rose by {total}; memory that stays allocated after {self.phase} steps did not rise"
            case FindingKind.FRAGMENTATION:
                what = (
                    f"{total} more are reserved than at step {self.since_step}, but the peak of allocated memory has "
                    "not risen: the unused part is in pieces too small to be used "
                    "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may help)"
                )
        return f"{self.kind} at step {self.step}: {what}"
