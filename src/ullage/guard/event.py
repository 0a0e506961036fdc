"""What a guard did about memory that ran out, one line each."""

from dataclasses import dataclass

from ullage._units import text_of_bytes
from ullage.message.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One failure of memory, and what was done about it."""

    step: int
    """Which call of `Guard.step`, from 1 on."""
    stage: str
    """"forward and backward", "the optimizer's step", ..."""
    action: str
    message: Message
    items: int | None = None
    """Items of the batch, or part of it, that failed."""
    parts: int = 1
    """In how many parts the step is now taken."""

    def __str__(self) -> str:
        asked = self.message.requested_bytes
        what = f"asked for {text_of_bytes(asked)}" if asked is not None else "memory ran out"
        size = f" with {self.items} items" if self.items is not None else ""
        return f"step {self.step}: {what} in {self.stage}{size}; {self.action}"
