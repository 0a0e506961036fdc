"""The event log of a guard. It has one entry for each out-of-memory error."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ullage.base.units import text_of_bytes
from ullage.recorded.message.message import Message

_EVENTS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A record of one out-of-memory error, and of what the guard did about it."""

    step: int
    """The index of the `Guard.step` call in which memory ran out. The first call is 1."""
    stage: str
    """The stage of the step that failed, such as "forward and backward" or "the optimizer's step"."""
    action: str
    message: Message
    items: int | None = None
    """The number of items that did not fit: those of the batch, or of one part of a split batch. None if it is
    unknown.
    """
    parts: int = 1
    """The number of parts into which the guard now splits the batch. It is 1 for a whole batch."""
    remark: str = ""
    """A warning for the user: how the result of the retried step may differ from a step without an error. Empty if it
    cannot differ.
    """

    def __str__(self) -> str:
        asked = self.message.requested_bytes
        what = f"a request of {text_of_bytes(asked)} failed" if asked is not None else "memory ran out"
        size = f" with {self.items} items" if self.items is not None else ""
        remark = f" ({self.remark})" if self.remark else ""
        return f"step {self.step}: {what} in {self.stage}{size}; {self.action}{remark}"


class EventLog:
    """The events of a guard, in the order in which they occurred.

    The log holds no reference to the guard, so that it does not keep the guard alive.
    """

    def __init__(self, log: Callable[[str], Any]) -> None:
        self.events: deque[Event] = deque(maxlen=_EVENTS)
        self.step = 0
        self.log = log
        self._pending: list[str] = []

    def add(self, event: Event) -> None:
        """Append an event, and call the user's log function with one line about it."""
        self.events.append(event)
        self.log(str(event))

    def add_pending(self, stage: str, action: str, message: Message) -> None:
        """Append an event, but do not log it before the next call of `log_pending`.

        The user's log function may raise an error. Such an error must not interrupt the optimizer's step.
        """
        event = Event(step=self.step, stage=stage, action=action, message=message)
        self.events.append(event)
        self._pending.append(str(event))

    def log_pending(self) -> None:
        """Call the user's log function with one line for each event that `add_pending` has appended."""
        lines, self._pending = self._pending, []
        for line in lines:
            self.log(line)
