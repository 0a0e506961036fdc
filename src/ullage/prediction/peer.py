"""Who is at the other end of a socket without a file."""

import socket
import struct
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")
"""The process, user and group at the other end of a socket (unix(7))."""


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user that have connected."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(credentials)
    return process, user
