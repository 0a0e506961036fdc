"""What a run has from its beginning to its end: the request, the emulated card, the journal, the channel, and notes."""

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


@dataclass(slots=True, kw_only=True)
class RunContext:
    """What every part of a run works with."""

    request: ChildRequest
    channel: Channel
    journal: Journal
    emulation: Emulation
    torch: TorchBuild
    """The torch that is installed."""
    notes: list[str] = field(default_factory=list)
    """Sentences that the reader of the prediction has to know."""
    meter: HostMeter = field(init=False)

    def __post_init__(self) -> None:
        self.meter = HostMeter(self.journal)
