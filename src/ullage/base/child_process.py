"""A child process: how it starts, and how it ends together with everything that it started.

The process leads a group, its environment has a token that whatever it starts inherits, and it holds one end of a pipe,
the lifeline: the kernel kills the group when the other end closes, however the parent ends. This module does not know
what the process is for.
"""

import atexit
import ctypes
import fcntl
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import MutableMapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, Final

TOKEN_VARIABLE: Final = "ULLAGE_RUN"
HOOKS_FOLDER: Final = str(Path(__file__).parents[1] / "_child" / "hooks")
"""The folder of `sitecustomize.py`, which Python runs at the beginning of every process that finds it by PYTHONPATH."""

_F_SETSIG: Final = 10  # fcntl(2); Python has no name for it
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_LAST_STREAM: Final = 2  # standard error
_STRAY_SECONDS: Final = 2.0  # for what was killed to be gone
_POLL_SECONDS: Final = 0.01
_PACKAGES: Final = str(Path(__file__).resolve().parents[2])


def reach_children(environment: MutableMapping[str, str]) -> None:
    """Make Python processes with this environment, and their children, load `_child/hooks/sitecustomize.py`."""
    before = environment.get("PYTHONPATH")
    paths = before.split(os.pathsep) if before else []  # an empty one among others is the current folder
    if HOOKS_FOLDER not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([HOOKS_FOLDER, *paths])


def python_command(module: str, *, with_flags: bool) -> list[str]:
    """Return the command that runs `main` of a module of this package in another Python.

    Args:
        module: the dotted name of the module.
        with_flags: whether the options of this interpreter (-O, -X, -W ...) are passed on, as multiprocessing does.
    """
    # Only the user's own environment says where packages are, so the folder of this one comes last. The current
    # folder, which -c puts first, is not on the path of `python SCRIPT`, and could hide the standard library.
    code = (
        "import sys; sys.flags.safe_path or sys.path.pop(0); "
        f"{_PACKAGES!r} in sys.path or sys.path.append({_PACKAGES!r}); from {module} import main; main()"
    )
    flags = subprocess._args_from_interpreter_flags() if with_flags else []  # type: ignore[attr-defined]  # private
    return [sys.executable, *flags, "-c", code]


def beside_streams(descriptor: int) -> int:
    """Return a new file descriptor as one that is no standard stream's, where a shell had closed those (<&-).

    A process that we start would find our file as its input or output, or its input in the place of our file.
    """
    if descriptor > _LAST_STREAM:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def file_behind(descriptor: int) -> tuple[int, int] | None:
    """Return what tells a file from every other, to notice that a descriptor was closed, or is another's file since."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def new_pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a pipe, neither of them a standard stream's number."""
    reading, writing = os.pipe()
    return beside_streams(reading), beside_streams(writing)


class ChildProcess(AbstractContextManager["ChildProcess"]):
    """A Python process of this package; it and all its descendants end when this object or this process ends.

    The first argument of the process is the number of its end of the lifeline, which `tie_to_parent` takes.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        inherited: Sequence[int],
        environment: dict[str, str],
        with_flags: bool,
        output: int | IO[bytes] | None = None,
        standard_input: IO[bytes] | None = None,
    ) -> None:
        """Start the process.

        Args:
            module: the dotted name of the module whose `main` is run.
            arguments: further arguments, after the lifeline in the process's `sys.argv`.
            inherited: file descriptors that the process gets.
            environment: the process's environment; a token is added to it.
            with_flags: whether the options of this interpreter are passed on.
            output: where standard output and standard error go (as of `subprocess.Popen`); None: where ours go.
            standard_input: what it reads; None: nothing.
        """
        self._token = add_token(environment)
        lifeline_end, self._lifeline = new_pipe()
        try:
            self.popen: subprocess.Popen[bytes] = subprocess.Popen(
                [*python_command(module, with_flags=with_flags), str(lifeline_end), *arguments],
                pass_fds=(*inherited, lifeline_end),
                stdin=subprocess.DEVNULL if standard_input is None else standard_input,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline_end)

    def __exit__(self, *_: object) -> None:
        """End the process, and all that came of it."""
        self.end()

    def has_ended(self) -> bool:
        """Return whether the process has ended, without reaping it: until then its number cannot be reused."""
        if self.popen.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def ask_to_end(self, seconds: float) -> None:
        """Send the process SIGTERM, so that it may clear away what it has made, and wait that long for its end."""
        if self.has_ended():
            return
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.popen.pid, signal.SIGTERM)
        until = time.monotonic() + seconds
        while not self.has_ended() and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)

    def kill(self) -> int:
        """Kill the process and its group, unless it has been reaped, and return its exit code."""
        if self.popen.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)
        return self.popen.wait()

    def end(self) -> None:
        """Kill the process, its group, and the processes that left the group."""
        self.kill()
        _kill_strays(self._token)
        if self.popen.stdout is not None:
            self.popen.stdout.close()
        os.close(self._lifeline)


def tie_to_parent() -> None:
    """Tie this process, which a `ChildProcess` started, to its parent's life."""
    die_with_parent(int(sys.argv[1]))


def run_exit_handlers() -> None:
    """Run what other code expects at the interpreter's end: threads, exit handlers, buffers.

    Taking modules apart is left out: torch's would take a second, and nothing depends on it.
    """
    for last in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]  # both are private
        try:
            last()
        except BaseException:
            traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, broken, or not there at all
            stream.flush()


def add_token(environment: dict[str, str]) -> str:
    """Add a new token to a process's environment, next to those of the runs that it belongs to."""
    token = secrets.token_hex(8)
    environment[TOKEN_VARIABLE] = ":".join(filter(None, [environment.get(TOKEN_VARIABLE), token]))
    return token


def die_with_parent(lifeline: int) -> None:
    """Make the kernel kill this process's group when the parent's end of the lifeline closes, however that happens."""
    os.set_inheritable(lifeline, False)  # noqa: FBT003
    try:
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        # Only where a kernel knows no signals of pipes: it kills this process alone, and as soon as the parent's
        # *thread* ends. Beside the lifeline it could be the first, and with this process the group's signal is gone.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([lifeline], [], [], 0)[0]:  # it was gone before
        os._exit(1)


def _kill_strays(token: str) -> None:
    """Kill processes that left the group (daemons, `start_new_session=True`) by their token, and wait for their end."""
    until = time.monotonic() + _STRAY_SECONDS
    while _kill_marked(token.encode()) and time.monotonic() < until:  # one may be forking another while we look
        time.sleep(0.005)


def _kill_marked(token: bytes) -> bool:
    found = False
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):  # ended meanwhile
            if entry.stat().st_uid != os.geteuid():
                continue  # what another user's has in its memory may be made to be waited for
            for line in (entry / "environ").read_bytes().split(b"\0"):
                name, _, value = line.partition(b"=")
                if name == TOKEN_VARIABLE.encode() and token in value.split(b":"):
                    os.kill(int(entry.name), signal.SIGKILL)
                    found = True
    return found
