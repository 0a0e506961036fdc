"""Who is at the other end of a socket without a file, and whether it is still there."""

import socket
import struct
from pathlib import Path
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")
"""The process, user and group at the other end of a socket (unix(7))."""


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user that have connected."""
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
