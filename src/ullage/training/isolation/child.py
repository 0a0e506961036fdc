"""The separate process of `ullage.isolated`. It reads the function and its arguments, and sends the result back.

Its command-line arguments are four file descriptors: CHANNEL LIFELINE CALL ANSWER. The function and the result are
sent through shared memory files. CHANNEL closes when the process ends.
"""

import faulthandler
import gc
import io
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from types import FunctionType
from typing import Any, Final

from ullage.base.child_process import file_behind, run_exit_handlers, tie_to_parent
from ullage.base.driver import count_used
from ullage.training.isolation import transfer

CLOSED_CODE: Final = 119
"""The exit code that means that the user's function has closed the file descriptor for its result."""


class _ClosedError(BaseException):
    """The user's function has closed a file descriptor of ullage, so no result can be sent back."""


class _Reply:
    def __init__(self, file: int) -> None:
        self._file = file
        self._identity = file_behind(file)
        self.count = False

    def result(self, value: Any) -> None:
        try:
            self._write(value, kind="result")
        except Exception as error:
            self.refused(f"its result (of type {type(value).__name__}) cannot be sent back: {_text_of(error)}")

    def error(self, error: BaseException) -> None:
        # The first stack frame belongs to ullage.
        lines = traceback.format_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
        text = "".join(lines).rstrip()
        try:
            self._write(error, kind="error", traceback=text)
        except Exception as reason:
            self.refused(f"it raised an error that cannot be pickled ({_text_of(reason)}):\n{text}")

    def refused(self, text: str) -> None:
        self._write(None, kind="refused", text=text)

    def _write(self, value: Any, **note: Any) -> None:
        if file_behind(self._file) != self._identity:  # closed, and possibly reused for a file of the function
            raise _ClosedError
        os.ftruncate(self._file, 0)  # remove an answer that was not written completely
        if self.count:
            note["count"] = asdict(count_used())
        transfer.write(self._file, value, note=note, keep_device=False)


def main() -> None:
    """Run the function that the parent process has sent, and end this process."""
    tie_to_parent()
    channel, call, given = (int(number) for number in sys.argv[2:5])
    for number in (channel, call, given):
        os.set_inheritable(number, False)  # noqa: FBT003
    own, end = os.getpid(), os._exit
    if sys.stderr is not None:
        faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # progress is visible immediately, even through a pipe
    answer = _Reply(given)
    try:
        function = _read_call(call, answer)
        if function is not None:
            _run(function, answer, own)
    except KeyboardInterrupt:
        pass  # the parent ends this process
    except _ClosedError:
        end(CLOSED_CODE)
    if os.getpid() == own:  # not in a process that the function forked
        run_exit_handlers()
        end(0)


def _read_call(call: int, answer: _Reply) -> Callable[[], Any] | None:
    note = transfer.read_note(call)
    assert note is not None
    sys.path[:], sys.argv[:] = note["path"], note["argv"]
    if note["main"] is not None:  # the spawn method of multiprocessing looks here for definitions of `__main__`
        vars(sys.modules["__main__"])["__file__"] = note["main"]
    answer.count = note["count"]
    try:
        if os.environ.get("ULLAGE_EMULATED_CARD"):
            _inherit_card()
        function, arguments, keywords = transfer.read_value(call)
        _publish()
    except Exception as error:
        answer.refused(
            f"it or its arguments cannot be unpickled in that process: {_text_of(error)}; expected modules that a "
            "fresh interpreter can import by name, and arguments that can be pickled"
        )
        return None
    finally:
        os.close(call)
    return partial(function, *arguments, **keywords)  # a partial adds no stack frame to tracebacks


def _inherit_card() -> None:
    # Usually, sitecustomize has done this already. It does not run if Python was started with a flag such as -I or -S.
    # These imports take half of the start time of this process, so they are skipped without an emulated GPU.
    from ullage.base.errors import TorchMissingError
    from ullage.gpu.emulator.emulate import inherit

    with suppress(TorchMissingError):
        inherit()


def _publish() -> None:
    # pickle and torch.save look for the parent's objects in `__main__`
    main = vars(sys.modules["__main__"])
    for found in gc.get_objects():
        if issubclass(type(found), type | FunctionType):
            module = vars(found).get("__module__") if type(found) is not FunctionType else found.__module__
            if module == "__main__" and found.__qualname__.isidentifier():
                main[found.__qualname__] = found


def _run(function: Callable[[], Any], answer: _Reply, own: int) -> None:
    try:
        value = function()
    except BaseException as error:
        if os.getpid() != own:
            raise  # in a process that the function forked
        answer.error(error)
    else:
        if os.getpid() == own:
            answer.result(value)


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
