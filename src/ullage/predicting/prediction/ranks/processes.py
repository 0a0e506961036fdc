"""The processes that run ranks: who is at the other end of a socket, who still runs, and whether one more has room."""

import os
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ullage.running.diagnosis.host import available_bytes

_CREDENTIALS: Final = struct.Struct("3i")
"""The process, user and group at the other end of a socket (unix(7))."""


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end of a socket without a file."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(credentials)
    return process, user


def is_running(process: int) -> bool:
    """Return whether a process is there, and not only waits to be asked how it has ended."""
    return _status(process)[:1] not in ([], [b"Z"], [b"X"])


def starters_of(process: int) -> list[int]:
    """Return the process that has started a process, the one that has started that, and so on."""
    found = []
    while len(status := _status(process)) > 1 and (process := int(status[1])):
        found.append(process)
    return found


def _status(process: int) -> list[bytes]:
    """Return what the kernel says of a process behind its name (proc(5)); nothing where it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def _own_bytes(process: int) -> int:
    """Return the memory that a process has for itself; 0 where it is gone."""
    with suppress(OSError, ValueError, IndexError):
        pages = Path(f"/proc/{process}/statm").read_text().split()
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
    return 0


class HostRoom:
    """The processes that run ranks, and whether the host has memory for one more beside them."""

    def __init__(
        self, available: Callable[[], int | None] = available_bytes, own: Callable[[int], int] = _own_bytes
    ) -> None:
        """Take what tells the host's free memory (None where that is not known) and a process's own, in bytes."""
        self._available = available
        self._own = own
        self._processes: Counter[int] = Counter()

    def come(self, process: int) -> None:
        """Count a process, once more where it comes twice."""
        self._processes[process] += 1

    def go(self, process: int) -> None:
        """Count it once less."""
        self._processes -= Counter([process])

    def has_room(self, coming: int) -> bool:
        """Tell whether one more process fits, and as much again stays free.

        Each is taken to become as large as the largest is now. A rank that is asked early, and loads something large
        into the host's memory later, is not foreseen.

        Args:
            coming: how many more were started, which are not counted yet.
        """
        available = self._available()
        sizes = [self._own(process) for process in self._processes]
        if available is None or not sizes:
            return True
        largest = max(sizes)
        grows = sum(largest - size for size in sizes) + coming * largest
        return available - grows >= 2 * largest
