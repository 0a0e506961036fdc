"""Frees what an exception keeps alive: the variables of every function that it passed through."""

import inspect
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType, TracebackType


def clear_frames(error: BaseException | TracebackType | FrameType) -> None:
    """Clear the frames of an error, which keep variables alive, such as the tensors of an attempt that failed.

    The error keeps its text and the lines of its traceback. Frames that still run are left alone. Call it after the
    `except` clause has ended: until then the interpreter holds the frames too. A traceback without its error, or a
    single frame, can be passed as well.
    """
    if isinstance(error, FrameType):
        with suppress(RuntimeError):  # it runs
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
    """Clear copies of variables that reading `f_locals` has left in frames of ended functions (Python up to 3.12).

    A debugger writes such a copy back into the variables, so while one runs the copies are left as they are.
    """
    if sys.gettrace() is not None:
        return
    for frame in frames:
        copy = frame.f_locals
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(copy, dict):
            copy.clear()
