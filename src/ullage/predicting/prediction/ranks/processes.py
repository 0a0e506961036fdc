"""Track the processes that run ranks. Check whether the host has enough memory for one more process."""

import os
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ullage.base.child_process import status_of
from ullage.running.diagnosis.host import available_bytes

# The process ID, user ID and group ID at the other end of a socket (unix(7))
_CREDENTIALS: Final = struct.Struct("3i")


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process ID and user ID at the other end of a Unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(credentials)
    return process, user


def starters_of(process: int) -> list[int]:
    """Return the IDs of a process's ancestors: its parent, its parent's parent, and so on."""
    found = []
    while len(status := status_of(process)) > 1 and (process := int(status[1])):
        found.append(process)
    return found


def _own_bytes(process: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        pages = Path(f"/proc/{process}/statm").read_text().split()
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
    return 0


class HostRoom:
    """Count the processes that run ranks, and decide whether the host has memory for another one."""

    # `available` returns the host's free bytes, and `own` a process's own bytes.
    def __init__(
        self, available: Callable[[], int | None] = available_bytes, own: Callable[[int], int] = _own_bytes
    ) -> None:
        self._available = available
        self._own = own
        self._processes: Counter[int] = Counter()

    def come(self, process: int) -> None:
        """Count a new connection of a rank's process to ullage. A process may connect more than once."""
        self._processes[process] += 1

    def go(self, process: int) -> None:
        """Count a closed connection of a rank's process to ullage."""
        self._processes -= Counter([process])

    def has_room(self, coming: int) -> bool:
        """Return whether the host has memory for another process, with the same amount left over.

        A new process is assumed to need as much memory as the largest one now.

        Args:
            coming: the number of processes that were started and are not counted yet.
        """
        available = self._available()
        sizes = [self._own(process) for process in self._processes]
        if available is None or not sizes:
            return True
        largest = max(sizes)
        grows = sum(largest - size for size in sizes) + coming * largest
        return available - grows >= 2 * largest
