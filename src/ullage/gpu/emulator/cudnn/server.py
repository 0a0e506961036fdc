"""The planner process: it answers the emulated cuDNN of one process over a socket, and ends with that process.

Started by `client/ask_planner.c` with a `planner.Setup` as JSON. A request and a reply are a length (four bytes,
little endian) and a text, as in `planner`.
"""

import os
import select
import signal
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from ullage.gpu.emulator.cudnn.planner import Planner, Setup

_POLL_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 120
"""Timeout of one answer; a client waits no longer."""
_LARGEST_REQUEST_BYTES: Final = 8 << 20
_MOST_FILES: Final = 1 << 16


def serve(planner: Planner, line: socket.socket, client: int) -> None:
    """Answer requests until the client has ended.

    Args:
        planner: the planner that answers.
        line: the socket for requests and replies.
        client: the process that asks. Its forks hold the other end too, so that its closing alone does not tell.
    """
    while True:
        while not select.select([line], [], [], _POLL_SECONDS)[0]:
            if _has_ended(client):
                return
        request = _read(line)
        if request is None:
            return
        signal.alarm(_ANSWER_SECONDS)
        reply = planner.answer(request).encode(errors="replace")
        signal.alarm(0)
        line.sendall(struct.pack("<I", len(reply)) + reply)


def _has_ended(client: int) -> bool:
    """Return whether a process has ended; one that was not reaped counts as ended."""
    try:
        return Path(f"/proc/{client}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _read(line: socket.socket) -> str | None:
    head = _exactly(line, 4)
    if head is None:
        return None
    (size,) = struct.unpack("<I", head)
    body = _exactly(line, size) if size <= _LARGEST_REQUEST_BYTES else None
    return None if body is None else body.decode(errors="replace")


def _exactly(line: socket.socket, size: int) -> bytes | None:
    read = bytearray()
    while len(read) < size:
        more = line.recv(size - len(read))
        if not more:
            return None
        read += more
    return bytes(read)


def main(setup_json: str, client: int) -> None:
    """Run the planner of a process over the socket at standard input; one byte reports that it is ready."""
    os.setsid()  # Ctrl-C is not for us: we end when our client does
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    with suppress(OSError):
        os.chdir("/")
    os.closerange(3, _MOST_FILES)  # whatever the user has open for children: who reads to its end would wait for us
    with socket.socket(fileno=os.dup(0)) as line, suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        line.sendall(b"\n")
        serve(Planner(Setup.of_json(setup_json)), line, client)
    os._exit(0)
