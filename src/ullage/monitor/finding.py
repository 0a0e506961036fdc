"""What a monitor has found, and its line of text. It knows nothing of how it is found."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ullage._units import text_of_bytes

ENOUGH_STEPS: Final = 50
"""Within so many steps a leak is found."""


class Kind(StrEnum):
    """Why memory is more than it was."""

    LEAK = "leak"
    """What stays after steps grows from step to step, and goes on growing."""
    GROWTH_ENDED = "growth that ended"
    """It grew from step to step and then stopped: a buffer that is full, a list that is cleared."""
    WARM_UP = "warm-up"
    """It rose once and stays: the optimizer's state, a workspace, a copy of the weights."""
    LONGER_BATCH = "longer batch"
    """The peak rose; what stays after steps did not."""
    FRAGMENTATION = "fragmentation"
    """What is reserved rose and what is in use at once did not: the rest lies in pieces that nothing fits into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a monitor has found."""

    kind: Kind
    phase: str
    """In whose steps it was seen: "train", or what `Monitor.phase` was given."""
    step: int
    """The step, from 1 on and counted over all phases, at which it was established."""
    since_step: int
    """The step from which on memory rose."""
    until_step: int | None = None
    """The step at which it was seen to have stopped; None while it goes on."""
    bytes_per_step: int = 0
    """What a step keeps more than the one before, on average; 0 where nothing grows step by step."""
    total_bytes: int = 0
    """How much more it is in all."""
    line: str | None = None
    """The user's line that allocated most of what stays ("project/train.py:41")."""
    lines: tuple[tuple[str, int], ...] = ()
    """All lines whose memory grows, with bytes a step, the most first."""
    holder: str | None = None
    """What holds it: a path from a variable."""

    @property
    def is_leak(self) -> bool:
        """Whether memory is still growing step by step."""
        return self.kind is Kind.LEAK

    @property
    def is_urgent(self) -> bool:
        """Whether a person should look at it."""
        return self.kind in (Kind.LEAK, Kind.FRAGMENTATION)

    def __str__(self) -> str:
        rate, total = text_of_bytes(self.bytes_per_step), text_of_bytes(self.total_bytes)
        where = f", allocated at {self.line}" if self.line else ""
        held = f", held by {self.holder}" if self.holder else ""
        match self.kind:
            case Kind.LEAK:
                what = f"every {self.phase} step keeps {rate} more since step {self.since_step}{where}{held}"
            case Kind.GROWTH_ENDED:
                what = (
                    f"memory after {self.phase} steps grew by {total} from step {self.since_step} on and has stopped "
                    f"growing by step {self.until_step}{where}{held}"
                )
            case Kind.WARM_UP:
                what = (
                    f"{total} more stay after {self.phase} steps since step {self.since_step}, and it grew no further"
                )
            case Kind.LONGER_BATCH:
                what = f"the peak rose by {total}; what stays after {self.phase} steps did not"
            case Kind.FRAGMENTATION:
                what = (
                    f"{total} more are reserved than at step {self.since_step}, and no more are in use at once: they "
                    "lie in pieces that nothing fits into (PYTORCH_ALLOC_CONF=expandable_segments:True may help)"
                )
        return f"{self.kind} at step {self.step}: {what}"
