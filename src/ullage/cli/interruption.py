"""Ctrl-C and its like, heard from the first moment: one sentence, and the exit code that a shell knows.

It imports as little as it can: what comes before it is not heard.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, NoReturn

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_SECONDS: Final = 0.01


class Interrupted(BaseException):
    """A signal asked this process to end. Not a KeyboardInterrupt, on which typer prints nothing."""

    def __init__(self, number: int) -> None:
        self.number = number


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    for other in _ENDING:  # the script's processes are being ended: once is enough
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)


@contextmanager
def told_in_one_sentence() -> Iterator[None]:
    """End with one sentence where a signal comes meanwhile; within another of its kind that one does it.

    Raises:
        SystemExit: a signal came.
    """
    previous = {number: signal.signal(number, _interrupt) for number in _ENDING if _is_heard(number)}
    hook = sys.unraisablehook
    if previous:
        sys.unraisablehook = _raised_again
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as error:
        number = error.number if isinstance(error, Interrupted) else int(signal.SIGINT)
        how = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
        with suppress(OSError, ValueError, AttributeError):  # closed, or nobody reads it
            sys.stderr.write(f"{how}; nothing was left behind\n")
        sys.exit(128 + number)
    finally:
        if previous:
            sys.unraisablehook = hook
        for number, handler in previous.items():
            signal.signal(number, handler)


def _raised_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Raise an interruption again that came where Python drops what is raised, as while it collects garbage."""
    error = unraisable.exc_value
    if not isinstance(error, Interrupted):
        sys.__unraisablehook__(unraisable)
        return
    number = error.number
    signal.signal(signal.SIGALRM, lambda _, frame: _interrupt(number, frame))
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)  # not here: this would drop it too


def _is_heard(number: int) -> bool:
    """Return whether this thread handles the signal, it was not ignored from outside (nohup), nor heard before."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(number) not in (signal.SIG_IGN, _interrupt)


def end_at_once() -> None:
    """Let a signal end this process from now on, as nothing is left to be cleared away: at its very end only."""
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
