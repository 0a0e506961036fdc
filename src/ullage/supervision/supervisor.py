"""Start a command, hand every signal on, and end as it has ended: nobody who waits for it notices us in between.

The command leads a process group of its own, which has the terminal as long as it runs, as a shell does it: Ctrl-C and
Ctrl-Z reach it and not us, and what is sent to us is sent on, once. If we are killed, the kernel kills it. In a
pipeline it stays in our group: what is before and behind may read the terminal too (`| less`), and gets Ctrl-C as well.
"""

import fcntl
import os
import resource
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from ullage._child_process import die_with_parent
from ullage._errors import UsageError

_HANDED_ON: Final = frozenset(
    {
        *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
        *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT),
    }
)
_OF_TERMINALS: Final = frozenset({signal.SIGINT, signal.SIGQUIT})
_STOPS: Final = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
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


def supervise(command: Sequence[str], environment: Mapping[str, str], on_tick: Callable[[], None]) -> Ending:
    """Run a command to its end.

    Args:
        command: the command and its arguments.
        environment: the environment of the command.
        on_tick: called once a second while it runs.

    Raises:
        UsageError: it cannot be started.
    """
    with _signals_held() as before, _lifeline_pipe() as (lifeline_end, _):
        terminal = _Terminal()
        if terminal.is_shared:  # a shell believes us that the command has stopped: not before it has
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=(lifeline_end,),
                preexec_fn=lambda: _begin(before, lifeline_end, terminal),
            )
        except OSError as error:
            raise UsageError(f"{command[0]} cannot be started: {error.strerror}; expected a program") from None
        terminal.hand_over(process.pid)
        handed_on: set[int] = set()
        try:
            status = _wait(process, terminal, on_tick, handed_on)
        finally:
            terminal.take_back()
            terminal.close()
            _let_go(lifeline_end)
            while terminal.is_shared and signal.sigtimedwait(_OF_TERMINALS | _STOPS, 0):
                pass  # it was the command's too, which has ended before we heard of it
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        is_of_terminal = number in _OF_TERMINALS and number not in handed_on and terminal.is_given
        return Ending(128 + number, number, is_of_terminal)
    return Ending(os.WEXITSTATUS(status))


def end_alike(ending: Ending) -> NoReturn:
    """End this process as the command has ended: by the same signal, without a second core file, or the same code."""
    if ending.signal is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(ending.signal, signal.SIG_DFL)
        if ending.is_of_terminal:
            os.killpg(os.getpgrp(), ending.signal)  # a script around us ends by Ctrl-C, as it would without us
        os.kill(os.getpid(), ending.signal)
    raise SystemExit(ending.exit_code)


def _wait(
    process: "subprocess.Popen[bytes]", terminal: "_Terminal", on_tick: Callable[[], None], handed_on: set[int]
) -> int:
    """Wait for the end of a process, and hand on what is sent to us meanwhile; note which signals that were."""
    while True:
        pid, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            terminal.stop_with(process.pid)
            continue
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
            return status
        # Without a time limit: sigtimedwait of CPython 3.11 answers with whatever lay in memory where it is
        # interrupted (SIGSTOP, SIGCONT) and its time is over then.
        sent = signal.sigwaitinfo(_HANDED_ON | {signal.SIGCHLD, signal.SIGALRM})
        if sent.si_signo == signal.SIGALRM and sent.si_code == _SI_KERNEL:
            on_tick()
        elif sent.si_signo != signal.SIGCHLD and not terminal.has_reached_command(sent):
            handed_on.add(sent.si_signo)
            with suppress(ProcessLookupError):
                os.kill(process.pid, sent.si_signo)


class _Terminal:
    """The terminal that we belong to, whatever standard input is; in its foreground, or not."""

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):
            self._file = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        self.is_ours = self._is_in_front()
        self.is_shared = self.is_ours and any(map(_is_pipe, (0, 1)))
        """Whether the command stays in our group, as part of a pipeline."""

    @property
    def is_given(self) -> bool:
        """Whether the command's group has the terminal instead of ours."""
        return self.is_ours and not self.is_shared

    def has_reached_command(self, sent: signal.struct_siginfo) -> bool:
        """Tell whether the command got a signal of ours by itself: from the terminal, or when a shell continues us."""
        return self.is_shared and (sent.si_code == _SI_KERNEL or sent.si_signo == signal.SIGCONT)

    def hand_over(self, group: int) -> None:
        if self.is_shared:
            return
        with suppress(OSError):
            os.setpgid(group, group)  # as it does itself: whoever comes first
        self._set(group)

    def take_back(self) -> None:
        self._set(os.getpgrp())

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)

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
            self.take_back()
            os.killpg(os.getpgrp(), signal.SIGSTOP)
        self.is_ours = self._is_in_front()
        self._set(group)
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGCONT)

    def _is_in_front(self) -> bool:
        with suppress(OSError):
            return self._file >= 0 and os.tcgetpgrp(self._file) == os.getpgrp()
        return False

    def _set(self, group: int) -> None:
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


@contextmanager
def _signals_held() -> Iterator[set[signal.Signals]]:
    """Have signals wait until they are asked for, so that none comes at a bad moment; an alarm comes once a second."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON | {signal.SIGCHLD, signal.SIGALRM})
    alarm = signal.setitimer(signal.ITIMER_REAL, _TICK_SECONDS, _TICK_SECONDS)  # a new process has none
    try:
        yield {signal.Signals(number) for number in before}
    finally:
        signal.setitimer(signal.ITIMER_REAL, *alarm)
        signal.sigtimedwait({signal.SIGALRM}, 0)  # the last one, for which nobody waits any more
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _lifeline_pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def _let_go(lifeline_end: int) -> None:
    """Have nothing killed any more when the lifeline closes: what the command has left behind may live on."""
    with suppress(OSError):
        fcntl.fcntl(lifeline_end, fcntl.F_SETFL, fcntl.fcntl(lifeline_end, fcntl.F_GETFL) & ~os.O_ASYNC)


def _begin(mask: set[signal.Signals], lifeline_end: int, terminal: "_Terminal") -> None:
    """Run in the new process, before the command: make its own group, restore signals, and tie its life to ours."""
    terminal.hand_over(os.getpid())
    die_with_parent(lifeline_end, survives_exec=True)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
