"""Signals, such as that of Ctrl-C, that arrive while the guard's own code runs: kept until the user's code runs again.

The handler of a signal may raise an error at any line. In the user's code a guard is prepared for that; in the middle
of putting something back, or of an optimizer's step, it would leave half of it.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_NUMBERS: Final = tuple(
    getattr(signal, name)
    for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGTERM", "SIGINT")
    if hasattr(signal, name)
)
"""The signals that are kept; that of Ctrl-C is the last to be let through again."""


class Signals:
    """Keeps signals that have a handler in Python; a second one of a kind is let through at once."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, Any], Any]] = {}
        self._pending: list[int] = []
        self._is_released = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep signals inside this context, and handle them at its end."""
        if self._handlers or threading.current_thread() is not threading.main_thread():
            yield
            return
        found = {number: handler for number in _NUMBERS if callable(handler := signal.getsignal(number))}
        self._handlers, self._pending, self._is_released = found, [], False
        try:
            for number in found:
                signal.signal(number, self._keep)
            yield
        finally:
            pending = self._pending
            for number, handler in found.items():
                if signal.getsignal(number) == self._keep:
                    signal.signal(number, handler)
            self._handlers = {}
            for number in pending:
                found[number](number, None)

    @contextmanager
    def released(self) -> Iterator[None]:
        """Handle signals at once inside this context, and those that were kept at its beginning."""
        if not self._handlers:
            yield
            return
        self._is_released = True
        try:
            pending, self._pending = self._pending, []
            for number in pending:
                self._handlers[number](number, None)
            yield
        finally:
            self._is_released = False

    def _keep(self, number: int, frame: Any) -> None:
        if self._is_released or number in self._pending or number not in self._handlers:
            handler = self._handlers.get(number, signal.default_int_handler)
            handler(number, frame)
        else:
            self._pending.append(number)
