"""Exchange messages between this rank and the other ranks of a distributed script."""

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
"""The number of ranks in the largest process group for which ullage runs every rank. Most machines have up to 8
GPUs.
"""


@dataclass(slots=True)
class LonePost:
    """Send and receive messages in the process of a rank."""

    address: str
    variant: str
    rank: int
    helps: bool
    """Whether this rank runs only to send messages to other ranks."""
    note: Callable[..., None]
    """A function to call before and after this rank waits for a message.

    Before the wait, its arguments are "waits" and the rank of the sender. After the wait, its argument is "goes on".
    """
    largest_team: int = 0
    """The largest group in which ullage runs all ranks to get their values for a collective."""
    is_alone: bool = True
    sources: set[int] = field(default_factory=set)
    """The ranks from which this rank received messages."""
    failures: dict[int, str] = field(default_factory=dict)
    """The ranks whose messages did not come because they failed, each with the reason."""
    refusals: dict[int, str] = field(default_factory=dict)
    """The ranks whose messages did not come because ullage did not run them, each with the reason."""
    _stream: Any = None
    _process: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, key: str, value: bytes) -> None:
        """Send a message of this rank to the other ranks."""
        with suppress(OSError):
            self._ask(key=key, value=base64.b64encode(value).decode())

    def receive(self, key: str, source: int) -> bytes | None:
        """Wait for a message of another rank. Return None if the message will not come."""
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
        """Return notes for the report about other ranks that ran or failed."""
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
        """Connect to the message exchange between the ranks. A forked process connects again."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.connect("\0" + self.address)
        self._stream = connection.makefile("rwb")
        connection.close()  # takes effect when the stream is closed
        self._process = os.getpid()
        self._say(variant=self.variant, rank=self.rank, helps=self.helps)

    def close(self) -> None:
        """Close the connection to the message exchange between the ranks."""
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
    one, *more = map(str, sorted(ranks))
    return f"ranks {', '.join((one, *more))} were" if more else f"rank {one} was"
