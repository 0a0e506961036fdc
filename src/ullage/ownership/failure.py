"""What an exception holds: the variables of every function that it passed through."""

import traceback


def forget(error: BaseException) -> None:
    """Let go of everything that the frames of an error hold, such as the tensors of an attempt that failed.

    The error keeps its text and the lines of its traceback. Frames that still run are left alone. To be called after
    the `except` clause has been left, as long as which the interpreter holds the frames too.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        waiting += [one.__context__, one.__cause__]
