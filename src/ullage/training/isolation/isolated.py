"""Runs a function in a fresh process, so that all the memory that it takes is freed: the CUDA context too.

A process that has used CUDA keeps a context on the card until it ends. A function that runs in a process of its own
leaves nothing behind. This module does not know what the function does, and it does not initialise CUDA here.
"""

import errno
import math
import multiprocessing
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final, TypeVar

from ullage.base.child_process import ChildProcess, new_pipe
from ullage.base.driver import DriverCount, count_used
from ullage.base.errors import IsolationError, UsageError
from ullage.base.public import public
from ullage.training.isolation import transfer
from ullage.training.isolation.child import CLOSED_CODE
from ullage.training.isolation.driver_check import DriverCheck, prove

T = TypeVar("T")

_TICK_SECONDS: Final = 0.2
_ENDING_SECONDS: Final = 0.01
_FAULTS: Final = frozenset({signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL})
"""The signals for which faulthandler writes where the process was."""
_NO_ROOM: Final = frozenset({errno.EFBIG, errno.ENOSPC, errno.ENOMEM})
_INTERRUPT_SECONDS: Final = 5.0  # for the function to clean up after Ctrl-C


@public
def isolated(
    fn: Callable[..., T],
    /,
    *args: Any,
    timeout_seconds: float | None = None,
    report: Callable[[DriverCheck], None] | None = None,
    **kwargs: Any,
) -> T:
    """Run `fn(*args, **kwargs)` in a fresh process and return what it returns, or raise what it raises.

    The process is a new interpreter with this one's search path, working directory, environment, options and output.
    When this returns, the process and all that it started have ended, and everything they had on a card is freed.
    Functions and classes of `__main__`, lambdas and closures can be passed. Tensors and arrays are copied through
    shared memory: an argument arrives on the same device as here (and stays here), a result arrives on the CPU.

    Args:
        fn: the function to run. For one that has a parameter named like the two options below, use functools.partial.
        args: its positional arguments.
        timeout_seconds: the process is ended if it takes longer than this, including its start; None for no limit.
        report: called with a DriverCheck before this returns or raises; `print` prints it.
        kwargs: its keyword arguments.

    Raises:
        UsageError: the call cannot be pickled, or an option is wrong.
        IsolationError: the process ended before the function returned, timed out, or its result cannot be sent back.
        BaseException: the exception that the function raised, with its traceback in that process as a note.
    """
    _check(fn, timeout_seconds)
    before = count_used() if report else DriverCount()
    with _parcels() as (call, answer):
        _write_call(call, fn, args, kwargs, count=report is not None)
        run = _run(call, answer, timeout_seconds)
        note = transfer.read_note(answer)
        if report:
            report(prove(run.process, before, note))
        return _outcome(answer, note, run, _name_of(fn), timeout_seconds)  # type: ignore[no-any-return]  # it came through a pipe


def _check(fn: object, timeout_seconds: float | None) -> None:
    if not callable(fn):
        raise UsageError(f"ullage.isolated got a {type(fn).__name__} to run; expected a function, then its arguments")
    # multiprocessing's own mark, by which it refuses the same: a worker would start the worker that it is, without end.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            "ullage.isolated was called while a worker process imports the script that started it; put what the script "
            'does under: if __name__ == "__main__":'
        )
    is_number = isinstance(timeout_seconds, int | float)
    if timeout_seconds is not None and not (is_number and 0 < timeout_seconds < math.inf):
        raise UsageError(
            f"timeout_seconds={timeout_seconds!r} is not allowed; expected more than 0, or None for no limit"
        )


@contextmanager
def _parcels() -> Iterator[tuple[int, int]]:
    files = [transfer.new_file(), transfer.new_file()]
    try:
        yield files[0], files[1]
    finally:
        for file in files:
            os.close(file)


def _write_call(
    file: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, count: bool
) -> None:
    note = {
        "path": [path for path in sys.path if isinstance(path, str)],
        "argv": sys.argv,
        "main": getattr(sys.modules.get("__main__"), "__file__", None),
        "count": count,
    }
    try:
        transfer.write(file, (fn, args, kwargs), note=note, keep_device=True)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise IsolationError(
                f"there is no room to send {_name_of(fn)} and its arguments to another process: {error.strerror}; they "
                "go through shared memory, for which the limit on the size of files counts too (ulimit -f)"
            ) from None
        raise UsageError(
            f"{_culprit(fn, args, kwargs)} cannot be sent to another process: {type(error).__name__}: {error}; make it "
            "inside the function, or pass what it is made of"
        ) from error


def _culprit(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return a name for the first part of a call that cannot be pickled."""
    parts = {f"the function {_name_of(fn)}": fn}
    for place, part in (*enumerate(args), *kwargs.items()):
        parts[f"argument {place!r} of {_name_of(fn)} (of type {type(part).__name__})"] = part
    for text, part in parts.items():
        file = transfer.new_file()
        try:
            transfer.write(file, part, note={}, keep_device=True)
        except Exception:
            return text
        finally:
            os.close(file)
    return f"the call of {_name_of(fn)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _IsolatedRun:
    """The end of the process."""

    process: int
    in_time: bool
    code: int
    """The exit code of the process; negative: the signal that ended it."""


def _run(call: int, answer: int, timeout_seconds: float | None) -> _IsolatedRun:
    """Make the call in a process of its own, and wait until that process and all that it started have ended."""
    deadline = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds
    with _process(call, answer) as (process, channel):
        try:
            in_time = _wait(process, channel, deadline)
        except KeyboardInterrupt:
            with suppress(ProcessLookupError):
                os.kill(process.popen.pid, signal.SIGINT)
            _wait(process, channel, time.monotonic() + _INTERRUPT_SECONDS)
            raise
        code = process.kill()
        return _IsolatedRun(process=process.popen.pid, in_time=in_time, code=code)


@contextmanager
def _process(call: int, answer: int) -> Iterator[tuple[ChildProcess, int]]:
    """Start the process, and end it and all that it started, whatever happens."""
    if not sys.executable:
        raise IsolationError("ullage.isolated cannot start a Python process: sys.executable is empty in this process")
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, broken, or not there at all
            stream.flush()  # what was printed before is seen before
    channel, channel_end = new_pipe()
    try:
        inherited = (channel_end, call, answer)
        try:
            process = ChildProcess(
                "ullage.training.isolation.child",
                [str(number) for number in inherited],
                inherited=inherited,
                environment=dict(os.environ),
                with_flags=True,
            )
        finally:
            os.close(channel_end)
        with process:
            yield process, channel
    finally:
        os.close(channel)


def _wait(process: ChildProcess, channel: int, deadline: float) -> bool:
    """Wait until the process has ended, without reaping it; return False if the deadline came first."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while not process.has_ended():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        # The channel closes with the process, unless something that it forked holds it, or it was closed on the way.
        if poll.poll(1000 * min(_TICK_SECONDS, left)):
            time.sleep(min(_ENDING_SECONDS, left))
    return True


def _outcome(
    answer: int, note: dict[str, Any] | None, run: _IsolatedRun, name: str, timeout_seconds: float | None
) -> Any:
    """Return the result, or raise the error, that the answer holds."""
    if not run.in_time:
        where = "had returned, but threads or exit handlers of its process" if note else "or what it called"
        raise IsolationError(f"{name} was ended after timeout_seconds={timeout_seconds}: it {where} still ran")
    if note is None:
        raise IsolationError(f"{name} did not return: {_cause(run.code)}")
    if note["kind"] == "refused":
        raise IsolationError(f"{name} ran in a process of its own, but {note['text']}")
    try:
        value = transfer.read_value(answer)
    except Exception as error:
        raise IsolationError(
            f"what {name} returned or raised cannot be unpickled here: {type(error).__name__}: {error}"
            + (f"\n{note['traceback']}" if "traceback" in note else "")
        ) from error
    if note["kind"] == "error":
        value.add_note(f"In the process started by ullage.isolated:\n{note['traceback']}")
        raise value
    return value


def _cause(code: int) -> str:
    if code == CLOSED_CODE:
        return f"it closed the file descriptors that its result is sent through (exit code {code})"
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        text = f"its process was ended by {signal.Signals(-code).name}"
    except ValueError:
        text = f"its process was ended by signal {-code}"
    if -code == signal.SIGKILL:
        return f"{text}; unless somebody sent it, the host ran out of memory and the kernel chose this process"
    return f"{text}; its stack is on standard error" if -code in _FAULTS else text


def _name_of(fn: object) -> str:
    """Return the name of a function without running the user's code."""
    while isinstance(fn, partial):
        fn = fn.func
    if isinstance(fn, FunctionType | BuiltinFunctionType | MethodType | type):
        return fn.__qualname__
    return f"a {type(fn).__name__}"
