"""The log of a guard: each time memory ran out, and what was done about it, one line each."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ullage.base.units import text_of_bytes
from ullage.recorded.message.message import Message

_EVENTS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One out-of-memory error, and what was done about it."""

    step: int
    """The number of the call of `Guard.step`, from 1 on."""
    stage: str
    """The part of the step that failed: "forward and backward", "the optimizer's step", ..."""
    action: str
    message: Message
    items: int | None = None
    """The number of items in the batch, or in the part of it, that failed; None if that is not known."""
    parts: int = 1
    """The number of parts in which the step is now taken."""
    remark: str = ""
    """A sentence for the user on how the step is taken again; empty if it is as if nothing had happened."""

    def __str__(self) -> str:
        asked = self.message.requested_bytes
        what = f"asked for {text_of_bytes(asked)}" if asked is not None else "memory ran out"
        size = f" with {self.items} items" if self.items is not None else ""
        remark = f" ({self.remark})" if self.remark else ""
        return f"step {self.step}: {what} in {self.stage}{size}; {self.action}{remark}"


class EventLog:
    """The events of a guard, in order. It has no reference to the guard, so holding the log keeps no guard alive."""

    def __init__(self, log: Callable[[str], Any]) -> None:
        self.events: deque[Event] = deque(maxlen=_EVENTS)
        self.step = 0
        self.log = log
        self._pending: list[str] = []

    def add(self, event: Event) -> None:
        """Append an event, and log its line."""
        self.events.append(event)
        self.log(str(event))

    def add_pending(self, stage: str, action: str, message: Message) -> None:
        """Append an event, and leave its line for `log_pending`: the user's log function may raise, and the optimizer's
        step must not be interrupted by that."""
        event = Event(step=self.step, stage=stage, action=action, message=message)
        self.events.append(event)
        self._pending.append(str(event))

    def log_pending(self) -> None:
        """Log the lines of the events that `add_pending` has appended."""
        lines, self._pending = self._pending, []
        for line in lines:
            self.log(line)
