"""Frees the local variables that an exception keeps alive through its traceback."""

import inspect
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType, TracebackType


def clear_frames(error: BaseException | TracebackType | FrameType) -> None:
    """Clear the local variables in the stack frames of an exception, which keep tensors of a failed step alive.

    The exception keeps its message and the lines of its traceback. Call this function after the `except` clause has
    ended, because the interpreter holds references to the frames until then. The argument may also be a traceback or a
    single frame.
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
    # Up to Python 3.12, reading `f_locals` leaves a dictionary in the frame. Nothing is cleared while a debugger is
    # active, because it would write the dictionaries back into the variables.
    if sys.gettrace() is not None:
        return
    for frame in frames:
        copy = frame.f_locals
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(copy, dict):
            copy.clear()
