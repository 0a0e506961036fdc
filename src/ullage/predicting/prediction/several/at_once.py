"""Predictions side by side: the first that raises an error ends them all."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")
AT_ONCE: Final = 2  # a run needs a core and some memory


def at_once(work: Callable[[T], R], items: Iterable[T], stop: threading.Event, *, most: int = AT_ONCE) -> list[R]:
    """Return what the work gives for each item.

    Args:
        work: called in threads.
        items: what it is called with.
        stop: set where one has raised an error, so that the others end.
        most: how many are done at once.
    """
    with ThreadPoolExecutor(most) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
