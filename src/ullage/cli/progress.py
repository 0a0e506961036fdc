"""Progress on standard error: a live line on a terminal; elsewhere plain lines, once work takes longer."""

import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

_QUIET_SECONDS: Final = 2.0  # after which a run without a terminal reports its progress

Answer = TypeVar("Answer")


def with_progress(work: Callable[[Callable[[str], None]], Answer], *, live: bool = True) -> Answer:
    """Run work that reports its progress, and show it.

    Args:
        work: a function that is called with the function to report progress.
        live: whether a terminal gets a live line; not where something else writes to standard error.
    """
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    if console.is_terminal and live:
        with console.status("starting") as status:
            return work(lambda text: status.update(escape(text)))
    began = time.monotonic()

    def report(text: str) -> None:
        if time.monotonic() - began > _QUIET_SECONDS:
            sys.stderr.write(f"ullage: {text} ({time.monotonic() - began:.0f} s)\n")

    return work(report)
