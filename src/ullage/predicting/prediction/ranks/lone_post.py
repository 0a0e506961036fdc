"""The messages that a rank running alone sends to and receives from other ranks, through
`prediction.ranks.exchange`.
"""

import base64
import json
import os
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

LARGEST_TEAM: Final = 8
"""The largest group of ranks for which all ranks are run to collect what they gather: the number of GPUs in a
machine.
"""


@dataclass(slots=True)
class LonePost:
    """A rank's side of the message exchange, in the rank's process; it implements `Post` of
    `ullage.gpu.values.ranks`.
    """

    address: str
    variant: str
    rank: int
    helps: bool
    """Whether this process runs only because other ranks need its messages."""
    note: Callable[..., None]
    """A function called with "waits" and the awaited rank before a wait, and with "goes on" after the wait."""
    largest_team: int = 0
    """The largest group whose ranks are run to obtain what they gather, sum or exchange."""
    is_alone: bool = True
    sources: set[int] = field(default_factory=set)
    """The ranks from which this rank received messages."""
    failures: dict[int, str] = field(default_factory=dict)
    """The ranks that failed although this rank needed their messages, with the reason for each."""
    refusals: dict[int, str] = field(default_factory=dict)
    """The ranks that were not run although this rank needed their messages, with the reason for each."""
    _stream: Any = None
    _process: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, key: str, value: bytes) -> None:
        """Send a message to the exchange, where any rank that needs it can get it."""
        with suppress(OSError):
            self._ask(key=key, value=base64.b64encode(value).decode())

    def receive(self, key: str, source: int) -> bytes | None:
        """Wait for a message from a rank and return it; return None if the message will not come."""
        value, failure, refusal = self._ask(key=key, source=source)
        if value is None:
            if failure is not None:
                self.failures[source] = failure
            if refusal is not None:
                self.refusals[source] = refusal
            return None
        if source != self.rank:
            self.sources.add(source)
        return base64.b64decode(value)

    def notes(self) -> list[str]:
        """Return notes for the report about the other ranks that were run or failed."""
        found = [f"{_named(self.sources)} run too, up to the messages that this rank needs"] if self.sources else []
        found += [
            f"rank {rank}, from which this rank needs messages, failed: {why}"
            for rank, why in sorted(self.failures.items())
        ]
        for why in sorted(set(self.refusals.values())):
            who = _named(rank for rank, each in self.refusals.items() if each == why)
            found.append(f"{who} not run for this rank, or not from the start: {why}")
        return found

    def connect(self) -> None:
        """Connect to the exchange, so that other ranks know that this rank runs; a forked process connects again."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.connect("\0" + self.address)
        self._stream = connection.makefile("rwb")
        connection.close()  # takes effect when the stream is closed
        self._process = os.getpid()
        self._say(variant=self.variant, rank=self.rank, helps=self.helps)

    def close(self) -> None:
        """Close the connection to the message exchange; no message is sent or requested after this."""
        if self._stream is not None:
            with suppress(OSError):
                self._stream.close()

    def _ask(self, **said: Any) -> Any:
        with self._lock:
            if self._process != os.getpid():
                self.connect()
            source = said.get("source")
            self.note("waits", source=source if source != self.rank else None)
            try:
                self._say(**said)
                answer = self._stream.readline()
            finally:
                self.note("goes on")
        if not answer:
            raise ConnectionResetError("the message exchange between ranks has ended")
        return json.loads(answer)

    def _say(self, **said: Any) -> None:
        self._stream.write(json.dumps(said).encode() + b"\n")
        self._stream.flush()


def _named(ranks: Iterable[int]) -> str:
    """Return a list of ranks as the subject of a sentence, with "was" or "were"."""
    one, *more = map(str, sorted(ranks))
    return f"ranks {', '.join((one, *more))} were" if more else f"rank {one} was"
