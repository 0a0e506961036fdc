"""The interface of all engines: submit work, wait for its result, cancel it.

A work item is a function, given by its name, and plain data as its argument. Its result is plain data. So it can be
passed to a thread, to a process or to another machine. Each engine decides how to schedule work, how to repeat it after
a crash, and how to write logs.
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
    """An engine for parallel work (threads, Ray or Slurm) is not available, or has lost its work."""

    exit_code: int = ExitCode.UNKNOWN


class WorkEngine(ABC):
    """An engine for parallel work: threads, Ray or Slurm. When its context ends, unfinished work is cancelled."""

    name: str
    """The name of the engine, for messages."""
    at_once: int
    """The number of work items that the engine runs at the same time; an estimate if the number is not known."""

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
        """Stop the running work items, drop the waiting work items, and free the resources of this engine.

        A second call does nothing.
        """


def was_cancelled() -> EngineError:
    """Return the error for a work item that did not finish because its engine was cancelled."""
    return EngineError("the search was cancelled")


def refused() -> "Future[PlainData]":
    """Return a future that raises an EngineError, because the work was submitted after its engine was cancelled."""
    future: Future[PlainData] = Future()
    future.set_exception(was_cancelled())
    return future


def call(function: str, payload: PlainData, cancelled: Callable[[], bool]) -> PlainData:
    """Call the function with the name `module:function`, and return its result."""
    module, _, name = function.partition(":")
    answer: PlainData = getattr(importlib.import_module(module), name)(payload, cancelled)
    return answer


def call_in_process_of_its_own(function: str, payload: PlainData) -> PlainData:
    """Call a function in a separate process. To cancel the call, the engine kills the process and its descendants."""
    return call(function, payload, lambda: False)


def first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error's text. If the text is empty, return the name of the error's
    class.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
