"""The interface for parallel work: submit a function call, wait for its result, and cancel it.

A work item is the name of a function and plain data as its argument. The result is plain data, too. So a work item can
run in a thread, a process or on another machine.
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
    """The chosen system for parallel work (threads, Ray or Slurm) is not available, or its tasks were lost."""

    exit_code: int = ExitCode.UNKNOWN


class WorkEngine(ABC):
    """Runs functions in parallel with threads, Ray or Slurm. Unfinished calls are cancelled when its context ends."""

    name: str
    """The name of the engine in messages."""
    at_once: int
    """The number of work items that run at the same time. It may be an estimate."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    @abstractmethod
    def submit(self, function: str, payload: PlainData) -> "Future[PlainData]":
        """Schedule a function call and return a future for its result.

        If the call fails or is cancelled, the future raises an EngineError.

        Args:
            function: the name, `module:name`, of a function of two arguments: the data, and a function that returns
                whether the work was cancelled.
            payload: the data.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Stop running work, drop waiting work, and free all resources.

        A second call does nothing.
        """


def was_cancelled() -> EngineError:
    """Return the error for work that did not finish because it was cancelled."""
    return EngineError("the search was cancelled")


def refused() -> "Future[PlainData]":
    """Return a future that raises an EngineError, for work that was submitted after `cancel`."""
    future: Future[PlainData] = Future()
    future.set_exception(was_cancelled())
    return future


def call(function: str, payload: PlainData, cancelled: Callable[[], bool]) -> PlainData:
    """Call the function that a text of the form `module:function` names, and return its result."""
    module, _, name = function.partition(":")
    answer: PlainData = getattr(importlib.import_module(module), name)(payload, cancelled)
    return answer


def call_in_process_of_its_own(function: str, payload: PlainData) -> PlainData:
    """Call a function in a separate process. If the call is cancelled, the process and its descendants are killed."""
    return call(function, payload, lambda: False)


def first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error's message, or the name of the error's class if there is none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
