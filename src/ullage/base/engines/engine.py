"""The interface of all engines: submit work, wait for its result, cancel it.

A work item is a function, given by its name, and plain data as its argument. Its result is plain data too. So it can
be passed to a thread, to a process or to another machine. Each engine decides how to schedule work, repeat it after
a crash and write logs.
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
    """An engine could not do the work: the engine is not available, or it lost the running work."""

    exit_code: int = ExitCode.UNKNOWN


class WorkEngine(ABC):
    """An engine that does work. As a context manager it cancels the work that still runs when the context ends."""

    name: str
    """The name of the engine, for messages."""
    at_once: int
    """The number of work items that run at once, as far as it is known."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    @abstractmethod
    def submit(self, function: str, payload: PlainData) -> "Future[PlainData]":
        """Schedule a call of a function with plain data. Return the future of its result.

        If the work fails or is cancelled, the future raises an EngineError.

        Args:
            function: the name, `module:name`, of a function of two arguments: the data, and a function that returns
                whether the work was cancelled.
            payload: the data.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Stop the work that runs, drop the work that waits, and free the engine's resources.

        A second call does nothing.
        """


def was_cancelled() -> EngineError:
    """Return the error for work that ran, waited or was submitted when the engine was cancelled."""
    return EngineError("the search was cancelled")


def refused() -> "Future[PlainData]":
    """Return the future of work that was submitted after the engine was cancelled. It raises an EngineError."""
    future: Future[PlainData] = Future()
    future.set_exception(was_cancelled())
    return future


def call(function: str, payload: PlainData, cancelled: Callable[[], bool]) -> PlainData:
    """Call a function that is given by its name, and return its result."""
    module, _, name = function.partition(":")
    answer: PlainData = getattr(importlib.import_module(module), name)(payload, cancelled)
    return answer


def call_in_process_of_its_own(function: str, payload: PlainData) -> PlainData:
    """Call a function in a process that only the engine ends, by killing the process and its descendants."""
    return call(function, payload, lambda: False)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that is not empty, or else the name of the error's class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
