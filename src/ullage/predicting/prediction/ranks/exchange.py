"""What ranks that run alone have told: a rank that needs what another sends has it run as far as the send.

The parent's side. Each rank's process that sends or needs something connects to a socket of ours; each connection has a
thread. A rank that nobody has run yet is run as a helper: it stops after each message until somebody asks it for more,
and ends with the exchange. What was told once is kept, so that with `--rank all` few helpers are needed.
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
NO_ROOM: Final = "the host has too little memory free for one more rank"
TOO_MANY: Final = f"{MOST_HELPERS} ranks are run for others already"
Start = Callable[[int, Callable[[], bool]], str | None]
"""Runs a rank as a helper until it is told that it is not wanted any more; returns why it failed, if it did."""


@dataclass(slots=True)
class _Variant:
    """The ranks of one run: the same script with the same settings and seed."""

    start: Start | None = None
    """Runs another rank of them as a helper; None until one of them is measured."""
    messages: dict[str, str | None] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    """The ranks that are measured now."""
    are_all_measured: bool = False
    """Whether a launcher starts every rank: one that has not come yet will come."""
    seen: set[int] = field(default_factory=set)
    """The ranks that have come."""
    helpers: set[int] = field(default_factory=set)
    """The ranks that have a helper, or had one."""
    ended: set[int] = field(default_factory=set)
    """Those whose helper has ended."""
    failures: dict[int, str] = field(default_factory=dict)
    """Why helpers failed."""
    asks: dict[int, tuple[int, str]] = field(default_factory=dict)
    """The rank that each of those waits for that wait, and for which message."""
    wanted: Counter[tuple[int, str]] = field(default_factory=Counter)
    """The messages that are waited for, with the rank that sends them, and how many wait for each."""

    def has_to_be_run(self, rank: int) -> bool:
        """Tell whether nobody runs a rank, nor will without being asked."""
        if rank in self.running or rank in self.helpers:
            return False
        return rank in self.seen or not self.are_all_measured

    def waits_for_itself(self, rank: int) -> bool:
        """Tell whether a rank waits for one that, by others or not, waits for it."""
        seen, other = set[int](), self._waits_for(rank)
        while other is not None and other not in seen:
            if other == rank:
                return True
            seen.add(other)
            other = self._waits_for(other)
        return False

    def _waits_for(self, rank: int) -> int | None:
        """Return the rank that one waits for; None too where its message is there, and it has not woken up yet."""
        source, key = self.asks.get(rank, (None, ""))
        return source if key not in self.messages else None


class Exchange:
    """The messages of the ranks of a prediction, from `with` on."""

    def __init__(self, room: HostRoom | None = None) -> None:
        """Take what tells whether the host has memory for one more rank."""
        self.address = f"ullage-{secrets.token_hex(16)}"
        """The name of the socket, in the kernel's abstract namespace."""
        self._variants: dict[str, _Variant] = {}
        self._changed = threading.Condition()
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        self.refusal: str | None = None
        """Why a rank that was asked for something was not run; None: each was."""
        self._room = room or HostRoom()
        self._coming: set[tuple[str, int]] = set()
        """The helpers that are started, and have not come yet."""
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)

    def __enter__(self) -> Self:
        self._door.bind("\0" + self.address)
        self._door.listen()
        self._begin(self._let_in)
        return self

    def __exit__(self, *unused: object) -> None:
        """End the helpers, and wait until they are gone."""
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
        """Say that a rank of a run is measured meanwhile.

        Args:
            variant: the name of the run; the ranks of one run tell each other what they do not tell those of another.
            rank: the rank.
            start: starts another of the same run, as a helper.
            are_all: whether every rank is.
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
        """Take in the processes of ranks; whoever else finds the door is turned away."""
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
        """Answer one process until it is gone; what it says is a line each."""
        # First what is suppressed: a stream sends what is left when it is closed, to a process that may be gone.
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

    # ---- what ranks say

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

    def _told(self, variant: str, rank: int, key: str, value: str, *, helps: bool) -> None:
        """Keep a message; a helper stops here until somebody waits for it."""
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

    def _asked(self, variant: str, rank: int, key: str, source: int) -> tuple[str | None, str | None, str | None]:
        """Wait for a message, and return it; None if it will not come, and if that is known: why its rank has failed,
        or why it was not run."""
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
        """Run a rank that somebody waits for."""
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
