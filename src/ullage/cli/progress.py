"""Progress on standard error: a live line on a terminal, plain lines elsewhere once it takes longer."""

import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

from rich.console import Console
from rich.markup import escape

_QUIET_SECONDS: Final = 2.0  # after which a run without a terminal tells of its progress

Answer = TypeVar("Answer")


def with_progress(work: Callable[[Callable[[str], None]], Answer], *, live: bool = True) -> Answer:
    """Do work that tells how far it is, and show it.

    Args:
        work: called with the function to tell.
        live: whether a terminal gets a live line; not where something else writes to standard error.
    """
    console = Console(stderr=True, highlight=False)
    if console.is_terminal and live:
        with console.status("starting") as status:
            return work(lambda text: status.update(escape(text)))
    began = time.monotonic()

    def tell(text: str) -> None:
        if time.monotonic() - began > _QUIET_SECONDS:
            sys.stderr.write(f"ullage: {text} ({time.monotonic() - began:.0f} s)\n")

    return work(tell)
