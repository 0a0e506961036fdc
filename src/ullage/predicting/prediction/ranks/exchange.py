"""Exchange messages between ranks that run separately. If a rank needs a message, its sender is run too.

Each rank connects to a socket of the parent process. A rank that runs only to send messages stops after each message
until another one is needed.
"""

import json
import os
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from ullage.base.errors import UllageError
from ullage.predicting.prediction.ranks.processes import HostRoom, peer_of

MOST_HELPERS: Final = 64
NO_ROOM: Final = "the host has too little free memory to run one more rank"
TOO_MANY: Final = f"{MOST_HELPERS} ranks already run for other ranks"
Start = Callable[[int, Callable[[], bool]], str | None]
"""A function that runs a rank until it is no longer needed. It returns the reason if the rank failed."""


@dataclass(slots=True)
class _Variant:
    start: Start | None = None
    """The function that starts another rank of this run. It is None before the first measured rank."""
    messages: dict[str, str | None] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    """The ranks whose memory is being measured."""
    are_all_measured: bool = False
    """Whether a launcher starts every rank, so that all ranks will connect."""
    seen: set[int] = field(default_factory=set)
    """The ranks that have connected."""
    helpers: set[int] = field(default_factory=set)
    """The ranks that ullage runs only to send messages to other ranks."""
    ended: set[int] = field(default_factory=set)
    """The ranks that ran only to send messages and have ended."""
    failures: dict[int, str] = field(default_factory=dict)
    """The ranks that failed, each with the reason."""
    asks: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Each waiting rank, with the rank that sends its message and the key of the message."""
    wanted: Counter[tuple[int, str]] = field(default_factory=Counter)
    """The number of ranks that wait for each message. The sending rank and the key identify a message."""

    def has_to_be_run(self, rank: int) -> bool:
        """Return whether ullage has to start a rank because no other process runs it."""
        if rank in self.running or rank in self.helpers:
            return False
        return rank in self.seen or not self.are_all_measured

    def waits_for_itself(self, rank: int) -> bool:
        """Return whether ranks wait for each other in a circle. For example, rank 0 waits for rank 1, and rank 1 for
        rank 0.
        """
        seen, other = set[int](), self._waits_for(rank)
        while other is not None and other not in seen:
            if other == rank:
                return True
            seen.add(other)
            other = self._waits_for(other)
        return False

    def _waits_for(self, rank: int) -> int | None:
        source, key = self.asks.get(rank, (None, ""))
        return source if key not in self.messages else None


class Exchange:
    """Exchange messages between the ranks of a prediction. It is a context manager."""

    def __init__(self, room: HostRoom | None = None) -> None:
        self.address = f"ullage-{secrets.token_hex(16)}"
        """The name of the socket in the kernel's abstract namespace."""
        self._variants: dict[str, _Variant] = {}
        self._changed = threading.Condition()
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        self.refusal: str | None = None
        """The reason why ullage did not run a rank from which another rank needed a message, or None."""
        self._room = room or HostRoom()
        # These processes have not connected yet.
        self._coming: set[tuple[str, int]] = set()
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)

    def __enter__(self) -> Self:
        self._door.bind("\0" + self.address)
        self._door.listen()
        self._begin(self._let_in)
        return self

    def __exit__(self, *unused: object) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for thread in self._threads:
            thread.join()

    @contextmanager
    def measures(self, variant: str, rank: int, start: Start, *, are_all: bool = False) -> Iterator[None]:
        """Register a rank as measured while the context is active.

        Args:
            variant: the name of the run; only ranks of the same run exchange messages.
            rank: the rank.
            start: starts another rank of the same run as a helper.
            are_all: whether all ranks of the run are measured.
        """
        with self._changed:
            mine = self._variants.setdefault(variant, _Variant())
            mine.running.add(rank)
            mine.are_all_measured |= are_all
            mine.start = start
        try:
            yield
        finally:
            with self._changed:
                mine.running.discard(rank)
                mine.are_all_measured = False
                self._changed.notify_all()

    # ---- threads

    def _begin(self, function: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _let_in(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                return
            if peer_of(connection)[1] != os.geteuid() or self._is_closed:
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # `suppress` comes first: when the stream is closed it sends buffered data to a process that may be gone.
        with suppress(OSError, ValueError, KeyError, TypeError), connection, connection.makefile("rwb") as stream:
            hello = json.loads(stream.readline())
            variant, rank, helps = str(hello["variant"]), int(hello["rank"]), bool(hello["helps"])
            process, _ = peer_of(connection)
            try:
                self._come(variant, rank, process, helps=helps)
                for line in stream:
                    said = json.loads(line)
                    if "value" in said:
                        self._told(variant, rank, said["key"], said["value"], helps=helps)
                        answer: Any = None
                    else:
                        answer = self._asked(variant, rank, said["key"], int(said["source"]))
                    stream.write(json.dumps(answer).encode() + b"\n")
                    stream.flush()
            finally:
                self._go(variant, rank, process, helps=helps)

    # ---- messages of ranks

    def _come(self, variant: str, rank: int, process: int, *, helps: bool) -> None:
        with self._changed:
            self._room.come(process)
            self._coming.discard((variant, rank))
            mine = self._variants.setdefault(variant, _Variant())
            mine.seen.add(rank)
            if not helps:
                mine.running.add(rank)

    def _go(self, variant: str, rank: int, process: int, *, helps: bool) -> None:
        with self._changed:
            self._room.go(process)
            if not helps:
                self._variants[variant].running.discard(rank)
            self._changed.notify_all()

    # A helper waits here until a rank needs another message from it.
    def _told(self, variant: str, rank: int, key: str, value: str, *, helps: bool) -> None:
        with self._changed:
            mine = self._variants.setdefault(variant, _Variant())
            mine.messages.setdefault(key, value)
            self._changed.notify_all()
            if helps:
                self._changed.wait_for(
                    lambda: (
                        self._is_closed
                        or any(source == rank and each not in mine.messages for source, each in mine.wanted)
                    )
                )

    # Returns the message (None if it will not come), the error of its rank, and the reason why its rank was not run.
    def _asked(self, variant: str, rank: int, key: str, source: int) -> tuple[str | None, str | None, str | None]:
        refusal: str | None = None
        with self._changed:
            mine = self._variants.setdefault(variant, _Variant())
            want = (source, key)
            mine.wanted[want] += 1
            mine.asks[rank] = want
            self._changed.notify_all()
            try:
                while not (self._is_closed or key in mine.messages or source in mine.ended):
                    if mine.waits_for_itself(rank):
                        break
                    if mine.has_to_be_run(source):
                        if len(mine.helpers) >= MOST_HELPERS or not self._room.has_room(len(self._coming)):
                            self.refusal = refusal = TOO_MANY if len(mine.helpers) >= MOST_HELPERS else NO_ROOM
                            break
                        self._help(variant, mine, source)
                    self._changed.wait()
            finally:
                mine.wanted -= Counter([want])
                mine.asks.pop(rank, None)
                self._changed.notify_all()
            return mine.messages.get(key), mine.failures.get(source), refusal

    def _help(self, variant: str, mine: _Variant, rank: int) -> None:
        mine.helpers.add(rank)
        start = mine.start
        if start is None:
            mine.ended.add(rank)
            return
        self._coming.add((variant, rank))

        def run() -> None:
            failure: str | None = None
            try:
                failure = start(rank, lambda: self._is_closed)
            except UllageError as error:
                failure = str(error)
            finally:
                with self._changed:
                    if failure is not None:
                        mine.failures[rank] = failure
                    self._coming.discard((variant, rank))
                    mine.ended.add(rank)
                    self._changed.notify_all()

        self._begin(run)
