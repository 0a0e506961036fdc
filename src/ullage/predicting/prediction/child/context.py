"""The data and connections that a predicted run uses, such as the request and the emulated GPU."""

import json
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ullage.base.child_process import file_behind
from ullage.gpu.emulator.emulate import Emulation
from ullage.gpu.emulator.torch_build import TorchBuild
from ullage.gpu.tracing.journal import Journal
from ullage.predicting.prediction.host.meter import HostMeter
from ullage.predicting.prediction.request import ChildRequest


class Channel:
    """A connection that sends messages to the parent process until the script closes it."""

    def __init__(self, number: int) -> None:
        self._number = number
        os.set_inheritable(number, False)  # noqa: FBT003
        self._identity = file_behind(number)
        self._lock = (
            threading.RLock()
        )  # a script may run steps in several threads, and a signal may interrupt a message

    @property
    def is_open(self) -> bool:
        """Whether the script has not closed the connection."""
        return file_behind(self._number) == self._identity

    def send(self, event: str, **details: Any) -> None:
        """Send a message to the parent process if the connection is open."""
        self.write(json.dumps({"event": event, **details}).encode() + b"\n")

    def write(self, data: bytes) -> None:
        """Send a complete message in bytes to the parent process."""
        # An OSError means that the script closed the channel, or that the parent has ended. The parent notices a closed
        # channel,
        # and the lifeline ends this process if the parent has ended.
        with suppress(OSError), self._lock:
            while data and self.is_open:
                data = data[os.write(self._number, data) :]

    def tell_exit_status(self, journal: Journal) -> None:
        """Make the C library send the exit status of this process as the last message."""
        journal.tell_exit_status(self._number)

    def close(self) -> None:
        """Close the connection in a process that the script forked."""
        with suppress(OSError):
            if self.is_open:
                os.close(self._number)


@dataclass(slots=True, kw_only=True)
class RunContext:
    """The data that all parts of a predicted run use, such as the request and the emulated GPU."""

    request: ChildRequest
    channel: Channel
    journal: Journal
    emulation: Emulation
    torch: TorchBuild
    """The installed torch."""
    notes: list[str] = field(default_factory=list)
    """The notes for the user in the prediction's report."""
    meter: HostMeter = field(init=False)

    def __post_init__(self) -> None:
        self.meter = HostMeter(self.journal)
