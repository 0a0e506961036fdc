"""The end of a process together with all that came of it, for those who start one of their own for a user's code.

The process leads a group, its environment has a token that whatever it starts inherits, and it holds one end of a pipe,
the lifeline: the kernel kills the group when the other end closes, however the parent ends. It does not know what the
process is for.
"""

import ctypes
import fcntl
import os
import secrets
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

TOKEN_VARIABLE: Final = "ULLAGE_RUN"

_F_SETSIG: Final = 10  # fcntl(2); Python has no name for it
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_STRAY_SECONDS: Final = 2.0  # for what was killed to be gone


def mark(environment: dict[str, str]) -> str:
    """Put a token of its own into a process's environment, beside those of the runs that it is part of."""
    token = secrets.token_hex(8)
    environment[TOKEN_VARIABLE] = ":".join(filter(None, [environment.get(TOKEN_VARIABLE), token]))
    return token


def die_with_parent(lifeline: int, *, survives_exec: bool = False) -> None:
    """Have the kernel kill this process's group when the parent's end of the lifeline closes, however it ends."""
    os.set_inheritable(lifeline, survives_exec)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # where a kernel knows no signals of pipes
    with suppress(OSError):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # it was gone before
        os._exit(1)


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Tell whether a process has ended, without reaping it: until then its number cannot be another's."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its group, unless it has been reaped."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def kill_strays(token: str) -> None:
    """Kill what left the group (daemons, `start_new_session=True`) by its token, and wait until all of it is gone."""
    until = time.monotonic() + _STRAY_SECONDS
    while _kill_marked(token.encode()) and time.monotonic() < until:  # one may be forking another while we look
        time.sleep(0.005)


def _kill_marked(token: bytes) -> bool:
    found = False
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):  # ended meanwhile, or another user's
            for line in (entry / "environ").read_bytes().split(b"\0"):
                name, _, value = line.partition(b"=")
                if name == TOKEN_VARIABLE.encode() and token in value.split(b":"):
                    os.kill(int(entry.name), signal.SIGKILL)
                    found = True
    return found
