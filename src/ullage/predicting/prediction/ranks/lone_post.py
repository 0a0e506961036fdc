"""Exchange messages between the rank in this process, which runs alone, and other ranks. The messages pass through
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
"""The size of the largest group in which ullage runs all ranks to collect the values that they gather. A usual machine
has this number of GPUs.
"""


@dataclass(slots=True)
class LonePost:
    """The part of the message exchange that runs in a rank's own process. It sends and receives the messages of this
    rank, and implements `Post` of `ullage.gpu.values.ranks`.
    """

    address: str
    variant: str
    rank: int
    helps: bool
    """Whether this process runs its rank only because other ranks need messages from it."""
    note: Callable[..., None]
    """A function that the rank calls before and after it waits for a message. Before the wait, it gets "waits" and the
    awaited rank. After the wait, it gets "goes on".
    """
    largest_team: int = 0
    """The size of the largest group in which ullage runs all ranks to get the values that they gather, sum or
    exchange.
    """
    is_alone: bool = True
    sources: set[int] = field(default_factory=set)
    """The other ranks from which this rank received messages."""
    failures: dict[int, str] = field(default_factory=dict)
    """Maps each rank that failed to the reason. This rank needed messages from these ranks."""
    refusals: dict[int, str] = field(default_factory=dict)
    """Maps each rank that ullage did not run to the reason. This rank needed messages from these ranks."""
    _stream: Any = None
    _process: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, key: str, value: bytes) -> None:
        """Send a message of this rank to the message exchange, which passes it to any rank that needs it."""
        with suppress(OSError):
            self._ask(key=key, value=base64.b64encode(value).decode())

    def receive(self, key: str, source: int) -> bytes | None:
        """Wait for a message from another rank, and return it. Return None if the message will not come."""
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
        """Return notes for the report about the other ranks that ullage ran or that failed."""
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
        """Connect to the message exchange, so that other ranks know that this rank runs. A forked process connects
        again.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.connect("\0" + self.address)
        self._stream = connection.makefile("rwb")
        connection.close()  # takes effect when the stream is closed
        self._process = os.getpid()
        self._say(variant=self.variant, rank=self.rank, helps=self.helps)

    def close(self) -> None:
        """Close the connection to the message exchange. After this, the rank neither sends nor requests messages."""
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
