"""Delays signals such as SIGINT (Ctrl-C) while the guard restores tensors or steps the optimizer.

A signal handler may raise an error at any line, which could leave tensors half written.
"""

import _signal  # type: ignore[import-not-found]  # `signal` without its enumerations, which take long
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

# The signals that are delayed while the guard's own code runs. The handler of SIGINT must be restored last, so SIGINT
# is last.
_NUMBERS: Final = tuple(
    int(getattr(signal, name))
    for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGTERM", "SIGINT")
    if hasattr(signal, name)
)


class Signals:
    """Delays signals that have a Python handler. If a signal arrives twice, it is handled immediately."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, Any], Any]] = {}
        self._pending: list[int] = []
        self._is_released = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay signals until the end of this context."""
        if self._handlers or threading.current_thread() is not threading.main_thread():
            yield
            return
        found = {number: handler for number in _NUMBERS if callable(handler := _signal.getsignal(number))}
        self._handlers, self._pending, self._is_released = found, [], False
        try:
            for number in found:
                _signal.signal(number, self._keep)
            yield
        finally:
            pending = self._pending
            for number, handler in found.items():
                if _signal.getsignal(number) == self._keep:
                    _signal.signal(number, handler)
            self._handlers = {}
            for number in pending:
                found[number](number, None)

    @contextmanager
    def released(self) -> Iterator[None]:
        """Handle signals immediately inside this context, including those that were delayed before."""
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
