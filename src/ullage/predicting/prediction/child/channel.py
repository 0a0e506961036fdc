"""The channel from the script's process to its parent, on the script's side."""

import json
import os
import threading
from contextlib import suppress
from typing import Any

from ullage.base.child_process import file_behind
from ullage.gpu.tracing.journal import Journal


class Channel:
    """The channel to the parent; if the script closes or reuses its file descriptor, nothing is sent."""

    def __init__(self, number: int) -> None:
        self._number = number
        os.set_inheritable(number, False)  # noqa: FBT003
        self._identity = file_behind(number)
        self._lock = threading.RLock()  # a script may step in several threads; signals come in the midst of a message

    def send(self, event: str, **details: Any) -> None:
        """Send one message, if the channel is still open."""
        self.write(json.dumps({"event": event, **details}).encode() + b"\n")

    def write(self, data: bytes) -> None:
        """Send a message that is made already."""
        # Closed by the script, or the parent is gone: it notices the one, the lifeline the other.
        with suppress(OSError), self._lock:
            while data and file_behind(self._number) == self._identity:
                data = data[os.write(self._number, data) :]

    def tell_exit_status(self, journal: Journal) -> None:
        """Have the status with which this process ends follow as the last message."""
        journal.tell_exit_status(self._number)

    def close(self) -> None:
        """Close the channel, in a process that was forked."""
        with suppress(OSError):
            if file_behind(self._number) == self._identity:
                os.close(self._number)
