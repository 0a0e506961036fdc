"""Run a function in a fresh process, so that all the memory that it takes comes back: the CUDA context too.

A process that has used CUDA keeps a context on the card until it ends, and nothing in it can give that back. A function
that runs in a process of its own leaves nothing. It does not know what the function does, and it starts no CUDA here.
"""

import math
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final, TypeVar

from ullage import _lifeline
from ullage._errors import IsolationError, UsageError
from ullage.driver import DriverCount, count_used
from ullage.ownership import parcel
from ullage.ownership.proof import Proof, prove

T = TypeVar("T")

_TICK_SECONDS: Final = 0.2
_ENDING_SECONDS: Final = 0.01
_INTERRUPT_SECONDS: Final = 5.0  # for the function to clean up after Ctrl-C


def isolated(
    fn: Callable[..., T],
    /,
    *args: Any,
    timeout_seconds: float | None = None,
    report: Callable[[Proof], None] | None = None,
    **kwargs: Any,
) -> T:
    """Run `fn(*args, **kwargs)` in a fresh process and return what it returns, or raise what it raises.

    The process is a new interpreter with this one's search path, folder, environment, options and output. When the
    function has returned, the process and whatever it started are gone, and with them everything they had on a card.
    Functions and classes of `__main__`, lambdas and closures travel. Tensors and arrays travel through shared memory as
    copies: an argument arrives on the device it is on here (and stays here), a result arrives on the CPU.

    Args:
        fn: what to run. The two options below are not passed on; a function with such a parameter: functools.partial.
        args: what to run it with.
        timeout_seconds: end it when it has taken longer, its start included; None: never.
        report: called with a Proof before this returns or raises; `print` prints it.
        kwargs: what to run it with.

    Raises:
        UsageError: the call cannot travel, or an option cannot be.
        IsolationError: the process ended before the function returned, was too slow, or its result cannot travel.
        BaseException: what the function raised, with its traceback there as a note.
    """
    _check(fn, timeout_seconds)
    before = count_used() if report else DriverCount()
    with _parcels() as (call, answer):
        _write_call(call, fn, args, kwargs, count=report is not None)
        run = _run(call, answer, timeout_seconds)
        note = parcel.read_note(answer)
        if report:
            report(prove(run.process, before, note))
        return _outcome(answer, note, run, _name_of(fn), timeout_seconds)  # type: ignore[no-any-return]


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
        raise UsageError(f"timeout_seconds={timeout_seconds!r} cannot be; expected more than 0, or None for no limit")


@contextmanager
def _parcels() -> Iterator[tuple[int, int]]:
    files = [parcel.new_parcel(), parcel.new_parcel()]
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
        parcel.write(file, (fn, args, kwargs), note=note, keep_device=True)
    except Exception as error:
        raise UsageError(
            f"{_culprit(fn, args, kwargs)} cannot travel to another process: {type(error).__name__}: {error}; make it "
            "inside the function, or pass what it is made of"
        ) from error


def _culprit(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Name the first part of a call that cannot be pickled."""
    parts: list[tuple[str, object]] = [("the function " + _name_of(fn), fn)]
    named: list[tuple[int | str, object]] = [*enumerate(args), *kwargs.items()]
    for place, part in named:
        parts.append((f"argument {place!r} of {_name_of(fn)} (of type {type(part).__name__})", part))
    for text, part in parts:
        file = parcel.new_parcel()
        try:
            parcel.write(file, part, note={}, keep_device=True)
        except Exception:
            return text
        finally:
            os.close(file)
    return f"the call of {_name_of(fn)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """How the process ended."""

    process: int
    in_time: bool
    code: int
    """Its exit code; negative: the signal that ended it."""


def _run(call: int, answer: int, timeout_seconds: float | None) -> _Run:
    """Have the call made in a process of its own, and wait until that and all that came of it has ended."""
    deadline = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds
    with _process(call, answer) as (process, channel):
        try:
            in_time = _wait(process, channel, deadline)
        except KeyboardInterrupt:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)
            _wait(process, channel, time.monotonic() + _INTERRUPT_SECONDS)
            raise
        _lifeline.kill_group(process)
        return _Run(process=process.pid, in_time=in_time, code=process.wait())


@contextmanager
def _process(call: int, answer: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start the process, and end all that came of it whatever happens."""
    environment = dict(os.environ)
    token = _lifeline.mark(environment)
    ends = [*os.pipe(), *os.pipe()]
    channel, channel_end, lifeline_end, _ = ends
    process = None
    try:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, broken, or not there at all
                stream.flush()  # what was printed before is seen before
        inherited = (channel_end, lifeline_end, call, answer)
        process = subprocess.Popen(
            [*_command(), *(str(number) for number in inherited)],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        os.close(channel_end)
        ends.remove(channel_end)
        yield process, channel
    finally:
        if process is not None:
            _lifeline.kill_group(process)
            process.wait()
            _lifeline.kill_strays(token)
        for end in ends:
            os.close(end)


def _command() -> list[str]:
    root = str(Path(__file__).resolve().parents[2])
    code = (
        "import sys; sys.flags.safe_path or sys.path.pop(0); "
        f"{root!r} in sys.path or sys.path.append({root!r}); from ullage.ownership.isolated_child import main; main()"
    )
    if not sys.executable:
        raise IsolationError("ullage.isolated finds no Python to start: sys.executable is empty in this process")
    # The options of this interpreter (-O, -X, -W ...), which multiprocessing passes on in the same way.
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", code]  # type: ignore[attr-defined]


def _wait(process: subprocess.Popen[bytes], channel: int, deadline: float) -> bool:
    """Wait until the process has ended; False: the deadline came first. It is not reaped."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while not _lifeline.has_ended(process):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        # The channel closes with the process, unless something that it forked holds it, or it was closed on the way.
        if poll.poll(1000 * min(_TICK_SECONDS, left)):
            time.sleep(min(_ENDING_SECONDS, left))
    return True


def _outcome(answer: int, note: dict[str, Any] | None, run: _Run, name: str, timeout_seconds: float | None) -> Any:
    """Return or raise what the answer holds."""
    if not run.in_time:
        where = "had returned, but threads or exit handlers of its process" if note else "or what it called"
        raise IsolationError(f"{name} was ended after timeout_seconds={timeout_seconds}: it {where} still ran")
    if note is None:
        raise IsolationError(f"{name} did not return: {_cause(run.code)}")
    if note["kind"] == "refused":
        raise IsolationError(f"{name} ran in a process of its own, but {note['text']}")
    try:
        value = parcel.read_value(answer)
    except Exception as error:
        raise IsolationError(
            f"what {name} returned or raised cannot be made again here: {type(error).__name__}: {error}"
            + (f"\n{note['traceback']}" if "traceback" in note else "")
        ) from error
    if note["kind"] == "error":
        value.add_note(f"In the process of its own (ullage.isolated):\n{note['traceback']}")
        raise value
    return value


def _cause(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        text = f"its process was ended by {signal.Signals(-code).name}"
    except ValueError:
        text = f"its process was ended by signal {-code}"
    if -code == signal.SIGKILL:
        return f"{text}; if nobody sent it, the host's memory ran out and the kernel chose this process"
    return f"{text}; what it was doing is on standard error"


def _name_of(fn: object) -> str:
    """Name a function without running code of the user's."""
    while isinstance(fn, partial):
        fn = fn.func
    if isinstance(fn, FunctionType | BuiltinFunctionType | MethodType | type):
        return fn.__qualname__
    return f"a {type(fn).__name__}"
