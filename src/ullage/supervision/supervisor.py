"""Start a command, hand every signal on, and end as it has ended: nobody who waits for it notices us in between.

The command leads a process group of its own, which has the terminal as long as it runs, as a shell does it: Ctrl-C and
Ctrl-Z reach it and not us, and what is sent to us is sent on, once. If we are killed, the kernel kills it.
"""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from ullage import _lifeline
from ullage._errors import UsageError

_HANDED_ON: Final = frozenset(
    {
        *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
        *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT),
    }
)
_TICK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command has ended: with an exit code, or by a signal."""

    exit_code: int
    """As a shell gives it: 128 and the number of the signal, where one has ended it."""
    signal: int | None = None


def supervise(command: Sequence[str], environment: Mapping[str, str], on_tick: Callable[[], None]) -> Ending:
    """Run a command to its end.

    Args:
        command: and its arguments.
        environment: of the command.
        on_tick: called once a second while it runs.

    Raises:
        UsageError: it cannot be started.
    """
    with _signals_held() as before, _lifeline_pipe() as (lifeline_end, _):
        terminal = _Terminal()
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=(lifeline_end,),
                preexec_fn=lambda: _begin(before, lifeline_end, terminal),
            )
        except OSError as error:
            raise UsageError(f"{command[0]} cannot be started: {error.strerror}; expected a program") from None
        terminal.give(process.pid)
        try:
            status = _wait(process, terminal, on_tick)
        finally:
            terminal.take_back()
    if os.WIFSIGNALED(status):
        return Ending(128 + os.WTERMSIG(status), os.WTERMSIG(status))
    return Ending(os.WEXITSTATUS(status))


def end_alike(ending: Ending) -> NoReturn:
    """End this process as the command has ended: by the same signal, without a second core file, or the same code."""
    if ending.signal is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(ending.signal, signal.SIG_DFL)
        os.kill(os.getpid(), ending.signal)
    raise SystemExit(ending.exit_code)


def _wait(process: "subprocess.Popen[bytes]", terminal: "_Terminal", on_tick: Callable[[], None]) -> int:
    """Wait for the end of a process, and hand on what is sent to us meanwhile."""
    due = time.monotonic() + _TICK_SECONDS
    while True:
        pid, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            terminal.stop_with(process.pid)
            continue
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
            return status
        sent = signal.sigtimedwait(_HANDED_ON | {signal.SIGCHLD}, max(0.0, due - time.monotonic()))
        if sent is not None and sent.si_signo != signal.SIGCHLD:
            with suppress(ProcessLookupError):
                os.kill(process.pid, sent.si_signo)
        if time.monotonic() >= due:
            on_tick()
            due = time.monotonic() + _TICK_SECONDS


class _Terminal:
    """The terminal that we have been started from, if we are in its foreground."""

    def __init__(self) -> None:
        self._is_ours = False
        with suppress(OSError):
            self._is_ours = os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()

    def give(self, group: int) -> None:
        with suppress(OSError):
            os.setpgid(group, group)  # as it does itself: whoever comes first
        self._set(group)

    def take_back(self) -> None:
        self._set(os.getpgrp())

    def stop_with(self, group: int) -> None:
        """Stop as the command has stopped (Ctrl-Z), until we are continued, and it with us."""
        if not self._is_ours:
            return  # nobody would continue us
        self.take_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        with suppress(OSError):
            self._is_ours = os.tcgetpgrp(0) == os.getpgrp()  # continued by fg, or by bg
        self._set(group)
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGCONT)

    def _set(self, group: int) -> None:
        if not self._is_ours:
            return
        # Who is not in the foreground is stopped when he asks for it, unless he does not hear that.
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            with suppress(OSError):
                os.tcsetpgrp(0, group)
        finally:
            signal.signal(signal.SIGTTOU, before)


@contextmanager
def _signals_held() -> Iterator[set[signal.Signals]]:
    """Have signals wait until they are asked for, so that none comes at a bad moment."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON | {signal.SIGCHLD})
    try:
        yield {signal.Signals(number) for number in before}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _lifeline_pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def _begin(mask: set[signal.Signals], lifeline_end: int, terminal: "_Terminal") -> None:
    """In the new process, before the command: a group of its own, the signals as we got them, and our end its end."""
    terminal.give(os.getpid())
    _lifeline.die_with_parent(lifeline_end, survives_exec=True)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
