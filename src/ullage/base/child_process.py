"""Start a child process, and end it together with every process that it started.

The child process leads its own process group. A random token in its environment marks its descendants. The child also
holds one end of a pipe, the lifeline. When the parent ends, the pipe closes and the process group is killed.
"""

import atexit
import ctypes
import fcntl
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, Final

TOKEN_VARIABLE: Final = "ULLAGE_RUN"
HOOKS_FOLDER: Final = str(Path(__file__).parents[1] / "_child" / "hooks")
"""The folder of ullage's `sitecustomize.py`. Python runs this file at startup if the folder is in PYTHONPATH."""

HANDOVER: Final = str(Path(__file__).parents[1] / "_child" / "libullage_child.so")
"""The library of `_child/handover.c`. It passes environment variables of ullage to every child process."""

_F_SETSIG: Final = 10  # fcntl(2); Python does not define this constant
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER: Final = 36  # prctl(2)
_LAST_STREAM: Final = 2  # standard error
_STRAY_SECONDS: Final = 2.0  # time limit for killed processes to disappear
_POLL_SECONDS: Final = 0.01
_PACKAGES: Final = str(Path(__file__).resolve().parents[2])


def reach_children(environment: MutableMapping[str, str]) -> None:
    """Change an environment so that Python processes load `_child/hooks/sitecustomize.py` when they start."""
    before = environment.get("PYTHONPATH")
    paths = before.split(os.pathsep) if before else []  # an empty entry between others means the current folder
    if HOOKS_FOLDER not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([HOOKS_FOLDER, *paths])


def hand_over(environment: MutableMapping[str, str]) -> None:
    """Change an environment so that its programs pass ullage's variables to every child process (`_child/handover.c`).

    LD_PRELOAD is a list with the separators ":" and white space (ld.so(8)). If the path of the library contains a
    separator, the environment stays unchanged.
    """
    before = environment.get("LD_PRELOAD", "")
    if not is_handed_over(environment) and not re.search(r"[:\s]", HANDOVER) and Path(HANDOVER).exists():
        environment["LD_PRELOAD"] = ":".join(filter(None, [HANDOVER, before]))


def is_handed_over(environment: Mapping[str, str]) -> bool:
    """Return whether the programs of an environment pass ullage's variables to every child process."""
    return HANDOVER in re.split(r"[:\s]", environment.get("LD_PRELOAD", ""))


def keep_for_children() -> None:
    """Keep ullage's present environment variables for child processes, if this process loaded the library of
    `_child/handover.c`.
    """
    with suppress(AttributeError):  # the library was not loaded
        ctypes.CDLL(None).ullage_child_keep()


def descendants_of(process: int, root: Path = Path("/proc")) -> Iterator[int]:
    """Return the IDs of a process's children, their children, and so on.

    Args:
        process: the process ID.
        root: the folder where the kernel shows processes (proc(5)).
    """
    for children in (root / str(process) / "task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                yield child
                yield from descendants_of(child, root)


def is_running(process: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    return status_of(process)[:1] not in ([], [b"Z"], [b"X"])


def status_of(process: int) -> list[bytes]:
    """Return the fields after the process name in /proc/PID/stat (proc(5)), or an empty list if the process has
    ended.
    """
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose own parent ends (PR_SET_CHILD_SUBREAPER).

    A process that starts a session and clears its environment is then still a descendant.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants(process: int) -> None:
    """Kill the descendants of a process, and wait up to two seconds until they have ended."""
    until = time.monotonic() + _STRAY_SECONDS
    while left := [each for each in descendants_of(process) if is_running(each)]:
        for each in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        if time.monotonic() > until:
            return
        time.sleep(_POLL_SECONDS)


def python_command(module: str, *, with_flags: bool) -> list[str]:
    """Return the command that runs the `main` function of a module of this package in a new Python process.

    Args:
        module: the dotted name of the module.
        with_flags: whether to pass on the options of this interpreter (-O, -X, -W ...), as multiprocessing does.
    """
    # The user's own environment decides where packages are found, so the folder of this package is appended last.
    # `python SCRIPT` does not have the current folder on its path, but -c puts it first, where its files could hide
    # modules
    # of the standard library. So it is removed.
    code = (
        "import sys; sys.flags.safe_path or sys.path.pop(0); "
        f"{_PACKAGES!r} in sys.path or sys.path.append({_PACKAGES!r}); from {module} import main; main()"
    )
    flags = subprocess._args_from_interpreter_flags() if with_flags else []  # type: ignore[attr-defined]  # private
    return [sys.executable, *flags, "-c", code]


def beside_streams(descriptor: int) -> int:
    """Duplicate a file descriptor to a number above 2.

    The numbers 0 to 2 may be free if the shell closed the standard streams (`<&-`). A child process would use a file
    with such a number as its standard input or output.
    """
    if descriptor > _LAST_STREAM:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def file_behind(descriptor: int) -> tuple[int, int] | None:
    """Return the device and inode of the file that a descriptor refers to, or None if it is closed.

    Compare two results to see whether the descriptor was closed or now refers to another file.
    """
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def new_pipe() -> tuple[int, int]:
    """Create a pipe whose file descriptors are both greater than 2."""
    reading, writing = os.pipe()
    return beside_streams(reading), beside_streams(writing)


class ChildProcess(AbstractContextManager["ChildProcess"]):
    """A child process that runs a module of this package.

    The child process and its descendants are killed when this object is closed or the parent process ends. The first
    argument of the child is the file descriptor of a pipe, the lifeline, which closes when the parent ends.
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
        standard_input: int = subprocess.DEVNULL,
    ) -> None:
        """Start the process.

        Args:
            module: the dotted name of the module whose `main` is run.
            arguments: further arguments, which follow the lifeline in the process's `sys.argv`.
            inherited: the file descriptors that the process inherits.
            environment: the process's environment; a token is added to it.
            with_flags: whether to pass on the options of this interpreter.
            output: the destination of standard output and standard error, as in `subprocess.Popen`. None: the same
                destination as in this process.
            standard_input: the file descriptor of its standard input, as in `subprocess.Popen`. Without it, the input
                is empty.
        """
        self._token = add_token(environment)
        lifeline_end, self._lifeline = new_pipe()
        try:
            self.popen: subprocess.Popen[bytes] = subprocess.Popen(
                [*python_command(module, with_flags=with_flags), str(lifeline_end), *arguments],
                pass_fds=(*inherited, lifeline_end),
                stdin=standard_input,
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
        self.end()

    def has_ended(self) -> bool:
        """Return whether the process has ended. Its process ID stays reserved until the object is closed."""
        if self.popen.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def ask_to_end(self, seconds: float) -> None:
        """Send SIGTERM to the child process, and wait up to `seconds` until it ends."""
        if self.has_ended():
            return
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.popen.pid, signal.SIGTERM)
        until = time.monotonic() + seconds
        while not self.has_ended() and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)

    def kill(self) -> int:
        """Kill the child process, its descendants and its process group, and return the child's exit code."""
        if self.popen.returncode is None:
            kill_descendants(self.popen.pid)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)
        return self.popen.wait()

    def end(self) -> None:
        """Kill the child process and all of its descendants, even those that left the process group."""
        self.kill()
        _kill_strays(self._token)
        if self.popen.stdout is not None:
            self.popen.stdout.close()
        os.close(self._lifeline)


def tie_to_parent() -> None:
    """Make the kernel kill this process when its parent ends. Processes started by `ChildProcess` call this
    function.
    """
    die_with_parent(int(sys.argv[1]))


def run_exit_handlers() -> None:
    """Join threads, call exit handlers and flush output streams, as Python does when it exits.

    Python's cleanup of modules is skipped: it takes about a second with torch, and no code depends on it.
    """
    for last in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]  # both are private
        try:
            last()
        except BaseException:
            traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # the stream is closed, broken or None
            stream.flush()


def add_token(environment: dict[str, str]) -> str:
    """Add a random token to a process's environment and return the token.

    Descendants of the process inherit the token, so that they can be found and ended.
    """
    token = secrets.token_hex(8)
    environment[TOKEN_VARIABLE] = ":".join(filter(None, [environment.get(TOKEN_VARIABLE), token]))
    return token


def die_with_parent(lifeline: int) -> None:
    """Make the kernel kill this process's group when the parent process ends.

    `lifeline` is the descriptor of a pipe whose other end the parent process holds open.
    """
    os.set_inheritable(lifeline, False)  # noqa: FBT003
    try:
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        # Only for a kernel that does not send signals for pipes. PR_SET_PDEATHSIG kills this process alone, and already
        # when
        # the parent's *thread* ends. It is not combined with the lifeline: it could act first, and the signal to the
        # group would be
        # lost with this process.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([lifeline], [], [], 0)[0]:  # the parent had already ended
        os._exit(1)


def _kill_strays(token: str) -> None:
    until = time.monotonic() + _STRAY_SECONDS
    while _kill_marked(token.encode()) and time.monotonic() < until:  # a process may fork while we scan
        time.sleep(0.005)


def _kill_marked(token: bytes) -> bool:
    found = False
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):  # the process has ended meanwhile
            if entry.stat().st_uid != os.geteuid():
                continue  # reading the memory of another user's process could be made to block
            for line in (entry / "environ").read_bytes().split(b"\0"):
                name, _, value = line.partition(b"=")
                if name == TOKEN_VARIABLE.encode() and token in value.split(b":"):
                    os.kill(int(entry.name), signal.SIGKILL)
                    found = True
    return found
