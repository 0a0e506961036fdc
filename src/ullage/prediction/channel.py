"""The script's process and its parent, as seen from the script's: the way to the parent, and the end with it."""

import ctypes
import fcntl
import json
import os
import select
import signal
import threading
from contextlib import suppress
from typing import Any, Final

_F_SETSIG: Final = 10  # fcntl(2); Python has no name for it
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)


class Channel:
    """The way to the parent. What the script does to its file descriptors must not send our messages elsewhere."""

    def __init__(self, number: int) -> None:
        self._number = number
        os.set_inheritable(number, False)  # noqa: FBT003
        self._identity = self._identity_now()
        self._lock = threading.RLock()  # a script may step in several threads; signals come in the midst of a message

    def _identity_now(self) -> tuple[int, int]:
        status = os.fstat(self._number)
        return status.st_dev, status.st_ino

    def tell(self, event: str, **details: Any) -> None:
        """Send one message, if the way is still there."""
        data = json.dumps({"event": event, **details}).encode() + b"\n"
        # Closed by the script, or the parent is gone: it notices the one, the lifeline the other.
        with suppress(OSError), self._lock:
            while data and self._identity_now() == self._identity:
                data = data[os.write(self._number, data) :]

    def close(self) -> None:
        """Close it, in a process that was forked."""
        with suppress(OSError):
            if self._identity_now() == self._identity:
                os.close(self._number)


def die_with_parent(lifeline: int) -> None:
    """Have the kernel kill this process's group when the parent's end of the lifeline closes, however it ends."""
    os.set_inheritable(lifeline, False)  # noqa: FBT003
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # where a kernel knows no signals of pipes
    with suppress(OSError):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # it was gone before
        os._exit(1)
