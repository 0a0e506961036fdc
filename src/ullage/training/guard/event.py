"""The event log of a guard, with one entry and one line for each out-of-memory error and for the action that the guard
took.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ullage.base.units import text_of_bytes
from ullage.recorded.message.message import Message

_EVENTS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A record of one out-of-memory error and of the action that the guard took."""

    step: int
    """The number of the `Guard.step` call in which memory ran out; the first call is 1."""
    stage: str
    """The stage of the step that failed, such as "forward and backward" or "the optimizer's step"."""
    action: str
    message: Message
    items: int | None = None
    """The number of items in the batch, or in the part of a split batch, that did not fit; None if it is not known."""
    parts: int = 1
    """The number of parts in which the guard now runs the batch; 1 for a whole batch."""
    remark: str = ""
    """A sentence that warns the user how the retried step may differ from an undisturbed step; empty if it does not
    differ.
    """

    def __str__(self) -> str:
        asked = self.message.requested_bytes
        what = f"a request of {text_of_bytes(asked)} failed" if asked is not None else "memory ran out"
        size = f" with {self.items} items" if self.items is not None else ""
        remark = f" ({self.remark})" if self.remark else ""
        return f"step {self.step}: {what} in {self.stage}{size}; {self.action}{remark}"


class EventLog:
    """The events of a guard, in the order in which they occurred. This object does not refer to the guard, so it does
    not keep the guard alive.
    """

    def __init__(self, log: Callable[[str], Any]) -> None:
        self.events: deque[Event] = deque(maxlen=_EVENTS)
        self.step = 0
        self.log = log
        self._pending: list[str] = []

    def add(self, event: Event) -> None:
        """Append an event to the guard's events, and call the user's log function with one line about it."""
        self.events.append(event)
        self.log(str(event))

    def add_pending(self, stage: str, action: str, message: Message) -> None:
        """Append an event to the guard's events, but do not log it until `log_pending` is called. The user's log
        function may raise an error, which must not interrupt the optimizer's step.
        """
        event = Event(step=self.step, stage=stage, action=action, message=message)
        self.events.append(event)
        self._pending.append(str(event))

    def log_pending(self) -> None:
        """Call the user's log function with one line for each event that `add_pending` has appended."""
        lines, self._pending = self._pending, []
        for line in lines:
            self.log(line)
