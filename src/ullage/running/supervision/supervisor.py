"""Start a command, hand every signal on, and end as it has ended: nobody who waits for it notices us in between.

The command is in a process group beside ours, which has the terminal as long as it runs, as a shell does it: Ctrl-C and
Ctrl-Z reach it and not us. What is sent to us is sent on, once: to the command, or to its group where all of ours got
it, which the `keeper` tells. It leads its group where we lead ours. In a pipeline it stays in our group: what is before
and behind may read the terminal too (`| less`), and gets Ctrl-C as well. Where we are killed, the keeper kills it.
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
        *(signal.SIGKILL, signal.SIGSTOP),  # which nobody hears
        *(signal.SIGCHLD, signal.SIGALRM),  # ours
        *(signal.SIGTTIN, signal.SIGTTOU, signal.SIGURG),
        *(signal.SIGPIPE, signal.SIGXFSZ),  # what we write to is closed, or full; every Python ignores them
    }
)
_HANDED_ON: Final = frozenset(signal.valid_signals()) - _NOT_HANDED_ON
_OF_TERMINALS: Final = frozenset({signal.SIGINT, signal.SIGQUIT})
_STOPS: Final = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_STANDARD_ERROR: Final = 2
_REST_SECONDS: Final = 0.1  # for a signal to the group to follow one to the command that has ended it
_TICK_SECONDS: Final = 1.0
_SI_KERNEL: Final = 0x80
"""The `si_code` of signals from the kernel (asm-generic/siginfo.h), such as the terminal's to our whole group."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a command: its exit code, or the signal that ended it."""

    exit_code: int
    """The exit code as a shell gives it: 128 plus the number of the signal if one has ended the command."""
    signal: int | None = None
    is_of_terminal: bool = False
    """Whether the signal came from the terminal, such as Ctrl-C, so that our parent would have got it, too."""


def environment_as_given() -> dict[str, str]:
    """Return the environment that we were started with, and so the command would be without us."""
    environment = dict(os.environ)
    with suppress(OSError):  # there may be no /proc
        given = {entry.partition(b"=")[0] for entry in Path("/proc/self/environ").read_bytes().split(b"\0")}
        if b"LC_CTYPE" not in given:  # where no language is set, Python sets one for its children
            environment.pop("LC_CTYPE", None)
    return environment


def supervise(command: Sequence[str], environment: Mapping[str, str], on_tick: Callable[[], None]) -> Ending:
    """Run a command to its end.

    Args:
        command: the command and its arguments.
        environment: the environment of the command.
        on_tick: called once a second while it runs.

    Raises:
        UsageError: it cannot be started.
    """
    inherited = _inherited_files()
    leads_session = os.getsid(0) == os.getpid()
    with _signals_held() as before, _Terminal() as terminal, _Keeper() as kept:
        if terminal.is_shared:  # a shell believes us that the command has stopped: not before it has
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)

        def begin(beside: int) -> None:
            """Run in the new process, before the command."""
            if leads_session and not terminal.is_there:
                os.setsid()  # as who started us, such as a container, has it
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
    """End this process as the command has ended: by the same signal, without a second core file, or the same code."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # full, or closed
            stream.flush()
    if ending.signal is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(ending.signal, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {ending.signal})
        if ending.is_of_terminal:
            os.killpg(os.getpgrp(), ending.signal)  # a script around us ends by Ctrl-C, as it would without us
        os.kill(os.getpid(), ending.signal)
    # Whatever becomes of our own streams and modules, and without PYTHONINSPECT's session after ours.
    os._exit(ending.exit_code)


def _wait(
    process: "subprocess.Popen[bytes]",
    group: int,
    terminal: "_Terminal",
    kept: "_Keeper",
    on_tick: Callable[[], None],
    handed_on: set[int],
) -> int:
    """Wait for the end of a process, and hand on what is sent to us meanwhile; note which signals that were."""
    while True:
        pid, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            if os.WSTOPSIG(status) == signal.SIGTSTP in handed_on:  # not by the terminal: who sent it means us
                handed_on.remove(signal.SIGTSTP)
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                terminal.stop_with(group)
            continue
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
            return status
        # Without a time limit: sigtimedwait of CPython 3.11 answers with whatever lay in memory where it is
        # interrupted (SIGSTOP, SIGCONT) and its time is over then.
        sent = signal.sigwaitinfo(_HANDED_ON | {signal.SIGCHLD, signal.SIGALRM})
        if sent.si_signo == signal.SIGALRM and sent.si_code == _SI_KERNEL:
            on_tick()
        elif sent.si_signo != signal.SIGCHLD:
            is_for_all = kept.has_heard(sent.si_signo)
            # The command in our group got one from the terminal too, or when a shell continues us.
            has_reached_command = is_for_all or sent.si_code == _SI_KERNEL or sent.si_signo == signal.SIGCONT
            if terminal.is_shared and has_reached_command:
                continue
            handed_on.add(sent.si_signo)
            with suppress(ProcessLookupError, PermissionError):
                if sent.si_pid == process.pid:  # which takes us for who started it
                    os.kill(os.getppid(), sent.si_signo)
                elif is_for_all:
                    os.killpg(group, sent.si_signo)
                else:
                    os.kill(process.pid, sent.si_signo)


def _hand_on_the_rest(group: int, terminal: "_Terminal", kept: "_Keeper", *, seconds: float) -> None:
    """Take the signals that come as the command ends: what it has left behind hears those for all of a group.

    Who ends a command (`timeout`, such as) may send a signal to it, and then to its group.
    """
    while sent := signal.sigtimedwait(_HANDED_ON | (_STOPS if terminal.is_shared else set()), seconds):
        if not terminal.is_shared and kept.has_heard(sent.si_signo):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, sent.si_signo)


class _Terminal:
    """The terminal that we belong to, whatever standard input is; in its foreground, or not."""

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
        """Whether the command stays in our group, as part of a pipeline."""

    @property
    def is_there(self) -> bool:
        """Whether our session has a terminal."""
        return self._file >= 0

    @property
    def is_given(self) -> bool:
        """Whether the command's group has the terminal instead of ours."""
        return self.is_ours and not self.is_shared

    def stop_with(self, group: int) -> None:
        """Stop as the command has stopped (Ctrl-Z, or it reads the terminal from the background), until continued.

        With all of our group, as the terminal would do it: what is before and behind us in a pipeline stops too.
        """
        if self._file < 0 or os.getpgrp() == os.getsid(0):
            return  # no shell would continue us
        if self.is_shared:
            os.kill(os.getpid(), signal.SIGSTOP)  # the others by themselves, and we continue as they do
            return
        came_to_front = not self.is_ours and self._is_in_front()  # begun with &, and brought back since
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
        """Put a group in the foreground, where the terminal is the command's."""
        if not self.is_given:
            return
        # Who is not in the foreground is stopped when he asks for it, unless he does not hear that.
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
    """Return the files beside the standard streams that who started us has open for us, and so for the command."""
    found = []
    with suppress(FileNotFoundError):  # there may be no /proc
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # that of the listing
                if int(name) > _STANDARD_ERROR and os.get_inheritable(int(name)):
                    found.append(int(name))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _SignalsBefore:
    """What who started us has done about signals, which a process keeps when it becomes another program."""

    mask: frozenset[int]
    hears_children: bool
    alarm: tuple[float, float]

    def restore(self) -> None:
        """Run in the command's process: give all of it to the command."""
        if not self.hears_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if self.alarm[0]:
            signal.setitimer(signal.ITIMER_REAL, *self.alarm)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)


@contextmanager
def _signals_held() -> Iterator[_SignalsBefore]:
    """Have signals wait until they are asked for, so that none comes at a bad moment; an alarm comes once a second.

    They wait beyond the end of the command, too: see `interruptible`.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON | {signal.SIGCHLD, signal.SIGALRM})
    children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who ignores it cannot wait for a child
    alarm = signal.setitimer(signal.ITIMER_REAL, _TICK_SECONDS, _TICK_SECONDS)  # a new process has none
    try:
        yield _SignalsBefore(frozenset(map(int, mask)), children != signal.SIG_IGN, alarm)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.sigtimedwait({signal.SIGALRM}, 0)  # the last one, for which nobody waits any more


@contextmanager
def interruptible() -> Iterator[None]:
    """Hear again what would end us, for what takes a while after the command has ended."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _group_beside_ours() -> Iterator[int]:
    """Make the number of a process group for the command: 0, its own, or that of a process that is gone right after.

    Where we lead no group, as in a script or a Makefile, the command must not lead one either: who leads one can make
    no session.
    """
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
    """The process that kills the command where we are killed, and hears what is sent to all of our group."""

    def __init__(self) -> None:
        self._ours = os.getpgrp()
        reading, self._writing = os.pipe()
        try:
            # Isolated, without site packages: it takes ten milliseconds, beside the command's own start.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(keeper.__file__)), str(reading)],
                pass_fds=(reading,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise UsageError(f"no process can be started: {error.strerror}; expected room for a few") from None
        finally:
            os.close(reading)

    def __enter__(self) -> "_Keeper":
        return self

    def __exit__(self, *_: object) -> None:
        """End it: what the command has left behind may live on."""
        self._process.kill()
        self._process.wait()
        os.close(self._writing)

    def tell(self) -> None:
        """Run in the command's process: say which process, and which group beside ours, is to end with us."""
        group = os.getpgrp()
        os.write(self._writing, f"{os.getpid()} {group if group != self._ours else 0}\n".encode())

    def has_heard(self, number: int) -> bool:
        """Tell whether a signal that we have got was for all of our group: it then waits in the keeper too."""
        with suppress(OSError, ValueError):
            status = Path(f"/proc/{self._process.pid}/status").read_text()
            [waiting] = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("ShdPnd:"))
            if waiting >> (number - 1) & 1:
                os.write(self._writing, b"\n")  # it takes what waits, so that the next one is told from this one
                return True
        return False
