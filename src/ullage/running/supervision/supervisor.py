"""Runs the user's command, forwards signals to it, and ends with the same exit code or signal.

In the comments, "we" are the process of `ullage run`. The command usually has a separate process group and uses the
terminal, so Ctrl-C and Ctrl-Z reach the command directly. In a pipeline, the command stays in our process group,
because other programs may read the terminal too. If `ullage run` is killed, a helper process kills the command.
"""

import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from ullage.base.errors import UsageError
from ullage.running.supervision import keeper

_NOT_HANDED_ON: Final = frozenset(
    {
        *(signal.SIGKILL, signal.SIGSTOP),  # no process can handle these
        *(signal.SIGCHLD, signal.SIGALRM),  # ours
        *(signal.SIGTTIN, signal.SIGTTOU, signal.SIGURG),
        *(signal.SIGPIPE, signal.SIGXFSZ),  # our output is closed or full; every Python ignores these signals
    }
)
_HANDED_ON: Final = frozenset(signal.valid_signals()) - _NOT_HANDED_ON
_OF_TERMINALS: Final = frozenset({signal.SIGINT, signal.SIGQUIT})
_STOPS: Final = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_STANDARD_ERROR: Final = 2
_REST_SECONDS: Final = 0.1  # waits for a signal to the group that follows the signal that ended the command
_TICK_SECONDS: Final = 1.0
# The `si_code` of a signal that comes from the kernel (asm-generic/siginfo.h), such as a signal of the terminal.
_SI_KERNEL: Final = 0x80


@dataclass(frozen=True, slots=True)
class Ending:
    """How the user's command ended: with an exit code, or by a signal."""

    exit_code: int
    """The exit code that a shell would report: 128 plus the signal number if a signal ended the command."""
    signal: int | None = None
    is_of_terminal: bool = False
    """Whether the terminal sent the signal, as for Ctrl-C. The parent process has then received it too."""


def environment_as_given() -> dict[str, str]:
    """Return the environment that the user's command would have without `ullage run`."""
    environment = dict(os.environ)
    with suppress(OSError):  # /proc may not exist
        given = {entry.partition(b"=")[0] for entry in Path("/proc/self/environ").read_bytes().split(b"\0")}
        if b"LC_CTYPE" not in given:  # if no language is set, Python sets LC_CTYPE for its children
            environment.pop("LC_CTYPE", None)
    return environment


def supervise(command: Sequence[str], environment: Mapping[str, str], on_tick: Callable[[], None]) -> Ending:
    """Run a command until it ends, and return its exit code or signal.

    Args:
        command: the command and its arguments.
        environment: the environment of the command.
        on_tick: called once a second while the command runs.

    Raises:
        UsageError: the command cannot be started.
    """
    inherited = _inherited_files()
    leads_session = os.getsid(0) == os.getpid()
    with _signals_held() as before, _Terminal() as terminal, _Keeper() as kept:
        if (
            terminal.is_shared
        ):  # we must not stop before the command has, because the shell takes our state for the command's
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)

        def begin(beside: int) -> None:
            """Prepare the child process before it executes the user's command."""
            if leads_session and not terminal.is_there:
                os.setsid()  # our parent, such as a container, also started us as the leader of a session
            elif not terminal.is_shared:
                os.setpgid(0, beside)
                terminal.hand_over(os.getpgrp())
            kept.tell()
            before.restore()

        try:
            with _group_beside_ours() as beside:
                begin_there = partial(begin, beside)
                process = subprocess.Popen(command, env=environment, pass_fds=inherited, preexec_fn=begin_there)
        except OSError as error:
            raise UsageError(f"{command[0]} cannot be started: {error.strerror}; expected a program") from None
        group = os.getpgid(process.pid)
        terminal.hand_over(group)
        handed_on: set[int] = set()
        try:
            status = _wait(process, group, terminal, kept, on_tick, handed_on)
        finally:
            terminal.hand_over(os.getpgrp())
            _hand_on_the_rest(
                group, terminal, kept, seconds=_REST_SECONDS if -(process.returncode or 0) in handed_on else 0
            )
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        is_of_terminal = number in _OF_TERMINALS and number not in handed_on and terminal.is_given
        return Ending(128 + number, number, is_of_terminal)
    return Ending(os.WEXITSTATUS(status))


def end_alike(ending: Ending) -> NoReturn:
    """End this process with the same exit code or the same signal as the user's command."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the stream is full or closed
            stream.flush()
    if ending.signal is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # SIGKILL cannot have a handler
            signal.signal(ending.signal, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {ending.signal})
        if ending.is_of_terminal:
            os.killpg(
                os.getpgrp(), ending.signal
            )  # a shell script that called us then ends by Ctrl-C, as it would without us
        os.kill(os.getpid(), ending.signal)
    # Exit at once, whatever our own streams and modules do, and without the interactive session of PYTHONINSPECT.
    os._exit(ending.exit_code)


def _wait(
    process: "subprocess.Popen[bytes]",
    group: int,
    terminal: "_Terminal",
    kept: "_Keeper",
    on_tick: Callable[[], None],
    handed_on: set[int],
) -> int:
    while True:
        pid, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            if os.WSTOPSIG(status) == signal.SIGTSTP in handed_on:  # not sent by the terminal, so the sender means us
                handed_on.remove(signal.SIGTSTP)
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                terminal.stop_with(group)
            continue
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)  # tell Popen that the process was waited for
            return status
        # Without a time limit, because sigtimedwait of CPython 3.11 returns uninitialised memory if it is interrupted
        # (SIGSTOP,
        # SIGCONT) and its time limit has passed.
        sent = signal.sigwaitinfo(_HANDED_ON | {signal.SIGCHLD, signal.SIGALRM})
        if sent.si_signo == signal.SIGALRM and sent.si_code == _SI_KERNEL:
            on_tick()
        elif sent.si_signo != signal.SIGCHLD:
            is_for_all = kept.has_heard(sent.si_signo)
            # In a shared group, the command also receives signals from the terminal, and SIGCONT when a shell continues
            # us.
            has_reached_command = is_for_all or sent.si_code == _SI_KERNEL or sent.si_signo == signal.SIGCONT
            if terminal.is_shared and has_reached_command:
                continue
            handed_on.add(sent.si_signo)
            with suppress(ProcessLookupError, PermissionError):
                if (
                    sent.si_pid == process.pid
                ):  # the command sends signals to its parent, which would be our parent without us
                    os.kill(os.getppid(), sent.si_signo)
                elif is_for_all:
                    os.killpg(group, sent.si_signo)
                else:
                    os.kill(process.pid, sent.si_signo)


def _hand_on_the_rest(group: int, terminal: "_Terminal", kept: "_Keeper", *, seconds: float) -> None:
    # A program that ends a command, such as `timeout`, may send a signal first to the command and then to its group.
    while sent := signal.sigtimedwait(_HANDED_ON | (_STOPS if terminal.is_shared else set()), seconds):
        if not terminal.is_shared and kept.has_heard(sent.si_signo):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, sent.si_signo)


class _Terminal:
    def __enter__(self) -> "_Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):
            self._file = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        self.is_ours = self._is_in_front()
        self.is_shared = self.is_ours and any(map(_is_pipe, (0, 1)))

    @property
    def is_there(self) -> bool:
        return self._file >= 0

    @property
    def is_given(self) -> bool:
        return self.is_ours and not self.is_shared

    def stop_with(self, group: int) -> None:
        # The whole process group stops, as the terminal would do it, so that the other programs of a pipeline stop too.
        if self._file < 0 or os.getpgrp() == os.getsid(0):
            return  # no shell would continue us
        if self.is_shared:
            os.kill(
                os.getpid(), signal.SIGSTOP
            )  # the other programs of the group stop by themselves, and we are continued together with them
            return
        came_to_front = (
            not self.is_ours and self._is_in_front()
        )  # started in the background with &, and brought to the foreground since
        if not came_to_front:
            self.hand_over(os.getpgrp())
            os.killpg(os.getpgrp(), signal.SIGSTOP)
        self.is_ours = self._is_in_front()
        self.hand_over(group)
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGCONT)

    def _is_in_front(self) -> bool:
        with suppress(OSError):
            return self._file >= 0 and os.tcgetpgrp(self._file) == os.getpgrp()
        return False

    def hand_over(self, group: int) -> None:
        if not self.is_given:
            return
        # A process in the background that changes the foreground group is stopped by SIGTTOU unless it ignores that
        # signal.
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            with suppress(OSError):
                os.tcsetpgrp(self._file, group)
        finally:
            signal.signal(signal.SIGTTOU, before)


def _is_pipe(file: int) -> bool:
    with suppress(OSError):
        return stat.S_ISFIFO(os.fstat(file).st_mode)
    return False


def _inherited_files() -> tuple[int, ...]:
    found = []
    with suppress(FileNotFoundError):  # /proc may not exist
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the descriptor of the listing itself is closed again
                if int(name) > _STANDARD_ERROR and os.get_inheritable(int(name)):
                    found.append(int(name))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _SignalsBefore:
    mask: frozenset[int]
    hears_children: bool
    alarm: tuple[float, float]

    def restore(self) -> None:
        if not self.hears_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if self.alarm[0]:
            signal.setitimer(signal.ITIMER_REAL, *self.alarm)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)


@contextmanager
def _signals_held() -> Iterator[_SignalsBefore]:
    # After the command has ended, signals stay blocked until `interruptible` unblocks them.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON | {signal.SIGCHLD, signal.SIGALRM})
    children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a process that ignores SIGCHLD cannot wait for a child
    alarm = signal.setitimer(
        signal.ITIMER_REAL, _TICK_SECONDS, _TICK_SECONDS
    )  # a new process does not inherit the timer
    try:
        yield _SignalsBefore(frozenset(map(int, mask)), children != signal.SIG_IGN, alarm)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.sigtimedwait({signal.SIGALRM}, 0)  # remove the last alarm, which nobody waits for


@contextmanager
def interruptible() -> Iterator[None]:
    """Allow signals to interrupt this process again after the user's command has ended."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _group_beside_ours() -> Iterator[int]:
    # If we do not lead a group, as in a shell script or a Makefile, the command must not lead one either, because a
    # group leader cannot create a session.
    if os.getpgrp() == os.getpid():
        yield 0
        return
    leader = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    with leader:
        try:
            yield leader.pid
        finally:
            leader.kill()


class _Keeper:
    def __init__(self) -> None:
        self._ours = os.getpgrp()
        reading, self._writing = os.pipe()
        try:
            # Python runs isolated and without site packages, so that starting it takes only ten milliseconds more.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(keeper.__file__)), str(reading)],
                pass_fds=(reading,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise UsageError(
                f"no process can be started: {error.strerror}; expected that a few more processes are allowed"
            ) from None
        finally:
            os.close(reading)

    def __enter__(self) -> "_Keeper":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._writing)

    def tell(self) -> None:
        group = os.getpgrp()
        os.write(self._writing, f"{os.getpid()} {group if group != self._ours else 0}\n".encode())

    def has_heard(self, number: int) -> bool:
        with suppress(OSError, ValueError):
            status = Path(f"/proc/{self._process.pid}/status").read_text()
            [waiting] = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("ShdPnd:"))
            if waiting >> (number - 1) & 1:
                os.write(
                    self._writing, b"\n"
                )  # makes the helper process remove the pending signal, so that the next one can be distinguished
                return True
        return False
