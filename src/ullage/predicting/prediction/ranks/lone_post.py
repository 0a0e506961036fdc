"""What a rank that runs alone tells others, and is told by them: its end of `prediction.ranks.exchange`."""

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
"""The largest group whose ranks are all run so that one has what they gather: as many as a machine has cards."""


@dataclass(slots=True)
class LonePost:
    """A rank's side of the exchange, in its own process: a `Post` of `ullage.gpu.values.ranks`."""

    address: str
    variant: str
    rank: int
    helps: bool
    """Whether this process runs only so that others have its messages."""
    note: Callable[..., None]
    """Called with "waits" and the rank that is waited for before something is, and with "goes on" after it."""
    largest_team: int = 0
    """The largest group whose ranks are asked what they gather, sum or exchange."""
    is_alone: bool = True
    sources: set[int] = field(default_factory=set)
    """The ranks that something was received of."""
    failures: dict[int, str] = field(default_factory=dict)
    """Why ranks failed that something was to come from."""
    refusals: dict[int, str] = field(default_factory=dict)
    """Why ranks were not run that something was to come from."""
    _stream: Any = None
    _process: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, key: str, value: bytes) -> None:
        """Leave a message for whoever asks for it."""
        with suppress(OSError):
            self._ask(key=key, value=base64.b64encode(value).decode())

    def receive(self, key: str, source: int) -> bytes | None:
        """Wait for a rank's message, and return it; None if it will not come."""
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
        """Return what a report has to say of it."""
        found = [f"{_named(self.sources)} run too, as far as this one needs what is sent to it"] if self.sources else []
        found += [
            f"rank {rank}, which has to send something to this one, failed: {why}"
            for rank, why in sorted(self.failures.items())
        ]
        for why in sorted(set(self.refusals.values())):
            who = _named(rank for rank, each in self.refusals.items() if each == why)
            found.append(f"{who} not run for this one, or not from the start: {why}")
        return found

    def connect(self) -> None:
        """Come to the exchange, so that others know that this rank runs; again in a process that was forked."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.connect("\0" + self.address)
        self._stream = connection.makefile("rwb")
        connection.close()  # once the stream is
        self._process = os.getpid()
        self._say(variant=self.variant, rank=self.rank, helps=self.helps)

    def close(self) -> None:
        """Go: nothing more is sent or asked for."""
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
            raise ConnectionResetError("the exchange of messages is gone")
        return json.loads(answer)

    def _say(self, **said: Any) -> None:
        self._stream.write(json.dumps(said).encode() + b"\n")
        self._stream.flush()


def _named(ranks: Iterable[int]) -> str:
    """Return ranks as the subject of a sentence, with a verb."""
    one, *more = map(str, sorted(ranks))
    return f"ranks {', '.join((one, *more))} were" if more else f"rank {one} was"
