"""What a guard did about memory that ran out, one line each."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ullage._units import text_of_bytes
from ullage.message.message import Message

_EVENTS: Final = 1000


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


class Diary:
    """The events of a guard, in order; it knows no guard, so that whoever writes into it keeps none alive."""

    def __init__(self, log: Callable[[str], Any]) -> None:
        self.events: deque[Event] = deque(maxlen=_EVENTS)
        self.step = 0
        self.log = log
        self._unsaid: list[str] = []

    def tell(self, event: Event) -> None:
        """Write an event down, and log its line."""
        self.events.append(event)
        self.log(str(event))

    def tell_later(self, stage: str, action: str, message: Message) -> None:
        """Write an event down in the middle of what must not end there: whoever logs may raise."""
        event = Event(step=self.step, stage=stage, action=action, message=message)
        self.events.append(event)
        self._unsaid.append(str(event))

    def say(self) -> None:
        """Log the lines that were put off."""
        if self._unsaid:
            said, self._unsaid = self._unsaid, []
            for line in said:
                self.log(line)
