"""`ullage.isolated`: runs a function in a new process, so that all its GPU memory and its CUDA context are freed.

A process that has used CUDA keeps a CUDA context on the GPU until it ends. This module does not initialise CUDA.
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
# The signals at which faulthandler writes the stack trace of the process.
_FAULTS: Final = frozenset({signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL})
_NO_ROOM: Final = frozenset({errno.EFBIG, errno.ENOSPC, errno.ENOMEM})
_INTERRUPT_SECONDS: Final = 5.0  # time for the function to clean up after Ctrl-C


@public
def isolated(
    fn: Callable[..., T],
    /,
    *args: Any,
    timeout_seconds: float | None = None,
    report: Callable[[DriverCheck], None] | None = None,
    **kwargs: Any,
) -> T:
    """Run `fn(*args, **kwargs)` in a fresh process; return its result, or raise its exception.

    The process is a new interpreter with the search path, working directory, environment, interpreter options and
    output of the calling process. When this function returns, the process and all processes that it started have ended,
    and all their GPU memory is freed. Functions and classes of `__main__`, lambdas and closures can be passed. Tensors
    and arrays are copied through shared memory: an argument arrives on the device on which it is here (the original
    stays allocated), and a result arrives on the CPU.

    Args:
        fn: the function to run. If it has a parameter named `timeout_seconds` or `report`, pass a functools.partial.
        args: the positional arguments of the function.
        timeout_seconds: the time in seconds, including the start of the process, after which the process is ended; None
            for no limit.
        report: a function that is called with a DriverCheck before this function returns or raises; `print` prints it.
        kwargs: the keyword arguments of the function.

    Raises:
        UsageError: the function or an argument cannot be pickled, or an option has a wrong value.
        IsolationError: the process ended before the function returned, the time limit was reached, or the result cannot
            be sent back.
        BaseException: the exception that the function raised; a note on it has the traceback of the separate process.
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
        raise UsageError(
            f"ullage.isolated was called with a {type(fn).__name__}; expected a function, followed by its arguments"
        )
    # multiprocessing sets this mark and refuses to start processes then: each worker would start another worker,
    # without end.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            "ullage.isolated was called while a worker process imports the script that started it; put the statements "
            "of the "
            'script under: if __name__ == "__main__":'
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
                f"there is not enough shared memory to send {_name_of(fn)} and its arguments to another process: "
                f"{error.strerror}; the limit on file sizes (ulimit -f) applies to shared memory too"
            ) from None
        raise UsageError(
            f"{_culprit(fn, args, kwargs)} cannot be sent to another process: {type(error).__name__}: {error}; create "
            "it inside the function, or pass the values that it is made from"
        ) from error


def _culprit(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
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
    process: int
    in_time: bool
    code: int


def _run(call: int, answer: int, timeout_seconds: float | None) -> _IsolatedRun:
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
    if not sys.executable:
        raise IsolationError("ullage.isolated cannot start a Python process: sys.executable is empty in this process")
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, broken, or None
            stream.flush()  # earlier output appears before the output of the process
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
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while not process.has_ended():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        # The channel closes when the process ends, unless a process that it forked keeps it open, or the function has
        # closed it before.
        if poll.poll(1000 * min(_TICK_SECONDS, left)):
            time.sleep(min(_ENDING_SECONDS, left))
    return True


def _outcome(
    answer: int, note: dict[str, Any] | None, run: _IsolatedRun, name: str, timeout_seconds: float | None
) -> Any:
    if not run.in_time:
        where = "had returned, but threads or exit handlers of its process" if note else "or what it called"
        raise IsolationError(f"{name} was ended after timeout_seconds={timeout_seconds}: it {where} were still running")
    if note is None:
        raise IsolationError(f"{name} did not return: {_cause(run.code)}")
    if note["kind"] == "refused":
        raise IsolationError(f"{name} ran in a separate process, but {note['text']}")
    try:
        value = transfer.read_value(answer)
    except Exception as error:
        raise IsolationError(
            f"the result or error of {name} cannot be unpickled in the calling process: {type(error).__name__}: {error}"
            + (f"\n{note['traceback']}" if "traceback" in note else "")
        ) from error
    if note["kind"] == "error":
        value.add_note(f"This is the traceback in the process that ullage.isolated started:\n{note['traceback']}")
        raise value
    return value


def _cause(code: int) -> str:
    if code == CLOSED_CODE:
        return f"it closed the file descriptor through which its result is sent (exit code {code})"
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        text = f"its process was ended by {signal.Signals(-code).name}"
    except ValueError:
        text = f"its process was ended by signal {-code}"
    if -code == signal.SIGKILL:
        return f"{text}; unless somebody sent this signal, the host ran out of memory and the kernel chose this process"
    return f"{text}; its stack trace is on standard error" if -code in _FAULTS else text


def _name_of(fn: object) -> str:
    while isinstance(fn, partial):
        fn = fn.func
    if isinstance(fn, FunctionType | BuiltinFunctionType | MethodType | type):
        return fn.__qualname__
    return f"a {type(fn).__name__}"
