"""The interface that every engine stands behind: submit work, wait for its result, cancel.

Work is a function, by name, and plain data for it; its result is plain data too. So it can be told to a
thread, to a process and to another machine alike. How work is scheduled, repeated after a crash and logged is the
engine's own.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Self

from ullage.base.errors import ExitCode, UllageError
from ullage.base.public import public

PlainData = dict[str, Any]


@public
class EngineError(UllageError):
    """Report that an engine could not do work: it is not there, or lost what it ran."""

    exit_code: int = ExitCode.UNKNOWN


class WorkEngine(ABC):
    """Does work; as a context, what still runs is cancelled at its end."""

    name: str
    """The engine's name for people."""
    at_once: int
    """The pieces of work that run at once, as far as is known."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    @abstractmethod
    def submit(self, function: str, payload: PlainData) -> "Future[PlainData]":
        """Have a function called with plain data; the future has its result, or an EngineError, as after `cancel`.

        Args:
            function: `module:name` of a function that takes the data, and a function that says whether the work is not
                wanted any more.
            payload: what it is called with.
        """

    @abstractmethod
    def cancel(self) -> None:
        """End everything that runs or waits, and give back what the engine holds; a second call does nothing."""


def was_cancelled() -> EngineError:
    """Return the error of work that ran, waited or came when the engine was cancelled."""
    return EngineError("the search was cancelled")


def refused() -> "Future[PlainData]":
    """Return the future of work that comes after the engine was cancelled."""
    future: Future[PlainData] = Future()
    future.set_exception(was_cancelled())
    return future


def call(function: str, payload: PlainData, cancelled: Callable[[], bool]) -> PlainData:
    """Call a function by its name."""
    module, _, name = function.partition(":")
    answer: PlainData = getattr(importlib.import_module(module), name)(payload, cancelled)
    return answer


def call_in_process_of_its_own(function: str, payload: PlainData) -> PlainData:
    """Call a function where nobody but the engine ends it: the process is killed, and what it has started with it."""
    return call(function, payload, lambda: False)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that says something, or the name of its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
