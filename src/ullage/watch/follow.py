"""Look again and again, until what is watched has ended."""

import time
from collections.abc import Callable, Iterator

from ullage.watch.view import View


def follow(look: Callable[[], View], *, seconds: float) -> Iterator[View]:
    """Yield a view at once and then from time to time; the last one is of the end.

    Args:
        look: gathers a view.
        seconds: from one look to the next.
    """
    due = time.monotonic()
    while True:
        view = look()
        yield view
        if view.is_over:
            return
        now = time.monotonic()
        due = max(due + seconds, now)  # a look that took longer is not made up for
        time.sleep(due - now)
