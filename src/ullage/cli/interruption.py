"""Handle Ctrl-C and similar signals: print one sentence, and exit with the code that shells expect.

This module has few imports, because no signal can be handled before it is loaded.
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


# This is not a KeyboardInterrupt, because typer ends without a message after a KeyboardInterrupt.
class Interrupted(BaseException):
    """An exception that a signal handler raises to end the process."""

    def __init__(self, number: int) -> None:
        self.number = number


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    for other in _ENDING:  # further signals are ignored while the script's processes are being ended
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)


@contextmanager
def told_in_one_sentence() -> Iterator[None]:
    """Print one sentence and exit if a signal arrives within this context.

    If contexts are nested, only the outermost one handles the signal.

    Raises:
        SystemExit: a signal arrived.
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
        with suppress(OSError, ValueError, AttributeError):  # the stream is closed, or its reader is
            sys.stderr.write(f"{how}; no processes or temporary files were left\n")
        sys.exit(128 + number)
    finally:
        if previous:
            sys.unraisablehook = hook
        for number, handler in previous.items():
            signal.signal(number, handler)


# Python drops an exception that a signal handler raises during garbage collection.
def _raised_again(unraisable: "sys.UnraisableHookArgs") -> None:
    error = unraisable.exc_value
    if not isinstance(error, Interrupted):
        sys.__unraisablehook__(unraisable)
        return
    number = error.number
    signal.signal(signal.SIGALRM, lambda _, frame: _interrupt(number, frame))
    signal.setitimer(
        signal.ITIMER_REAL, _AGAIN_SECONDS
    )  # raised by a timer, because an error raised here would be dropped too


def _is_heard(number: int) -> bool:
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(number) not in (signal.SIG_IGN, _interrupt)


def end_at_once() -> None:
    """Let a signal end this process at once. Call this function when nothing is left to clean up."""
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
