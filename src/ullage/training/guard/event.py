"""The out-of-memory errors that a guard has handled."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ullage.base.units import text_of_bytes
from ullage.recorded.message.message import Message

_EVENTS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One out-of-memory error, and what the guard did about it."""

    step: int
    """The index of the `Guard.step` call in which memory ran out. The first call is 1."""
    stage: str
    """The stage of the step that failed, such as "forward and backward" or "the optimizer's step"."""
    action: str
    message: Message
    items: int | None = None
    """The number of items that did not fit: a whole batch or a part of it. None if it is unknown."""
    parts: int = 1
    """The number of parts into which the guard now splits the batch. It is 1 for a whole batch."""
    remark: str = ""
    """A warning if the retried step may give a different result. Otherwise empty."""

    def __str__(self) -> str:
        asked = self.message.requested_bytes
        what = f"a request of {text_of_bytes(asked)} failed" if asked is not None else "memory ran out"
        size = f" with {self.items} items" if self.items is not None else ""
        remark = f" ({self.remark})" if self.remark else ""
        return f"step {self.step}: {what} in {self.stage}{size}; {self.action}{remark}"


class EventLog:
    """A list of the out-of-memory errors that a guard has handled, oldest first."""

    def __init__(self, log: Callable[[str], Any]) -> None:
        self.events: deque[Event] = deque(maxlen=_EVENTS)
        self.step = 0
        self.log = log
        self._pending: list[str] = []

    def add(self, event: Event) -> None:
        """Append an event, and pass one line about it to the user's log function."""
        self.events.append(event)
        self.log(str(event))

    def add_pending(self, stage: str, action: str, message: Message) -> None:
        """Append an event that is logged later, in `log_pending`.

        The user's log function may raise an error, which must not interrupt the optimizer's step.
        """
        event = Event(step=self.step, stage=stage, action=action, message=message)
        self.events.append(event)
        self._pending.append(str(event))

    def log_pending(self) -> None:
        """Pass one line to the user's log function for each event that was appended with `add_pending`."""
        lines, self._pending = self._pending, []
        for line in lines:
            self.log(line)
