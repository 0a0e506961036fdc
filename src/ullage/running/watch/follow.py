"""Yields views periodically, until what is watched has ended."""

import time
from collections.abc import Callable, Iterator

from ullage.running.watch.view import View


def follow(poll: Callable[[], View], *, seconds: float) -> Iterator[View]:
    """Yield a view at once and then periodically; the last one is taken after the end.

    Args:
        poll: gathers a view.
        seconds: the time from one view to the next.
    """
    due = time.monotonic()
    while True:
        view = poll()
        yield view
        if view.is_over:
            return
        now = time.monotonic()
        due = max(due + seconds, now)  # time lost by a slow poll is not made up for
        time.sleep(due - now)
