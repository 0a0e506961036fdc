"""Frees the local variables that an exception keeps alive. The stack frames of its traceback refer to them."""

import inspect
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType, TracebackType


def clear_frames(error: BaseException | TracebackType | FrameType) -> None:
    """Clear the stack frames of an exception, whose local variables keep objects alive, such as the tensors of a failed
    step.

    The exception keeps its message and the lines of its traceback. Frames that are still running are not changed. Call
    this function after the `except` clause has ended: until then the interpreter holds references to the frames too.
    The argument may also be a traceback or a single frame.
    """
    if isinstance(error, FrameType):
        with suppress(RuntimeError):  # raised if the frame is still running
            error.clear()
        _clear_copies([error])
        return
    if isinstance(error, TracebackType):
        traceback.clear_frames(error)
        _clear_copies(frame for frame, _ in traceback.walk_tb(error))
        return
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        _clear_copies(frame for frame, _ in traceback.walk_tb(one.__traceback__))
        waiting += [one.__context__, one.__cause__]


def _clear_copies(frames: Iterable[FrameType]) -> None:
    """Clear the dictionaries that remain in the frames of finished functions after `f_locals` was read (Python up to
    3.12).

    Nothing is cleared while a debugger is active, because it would write the dictionaries back into the variables.
    """
    if sys.gettrace() is not None:
        return
    for frame in frames:
        copy = frame.f_locals
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(copy, dict):
            copy.clear()
