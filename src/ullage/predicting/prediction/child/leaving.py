"""The end of a process that a command has started, in the middle of its script: what it has made is cleared away.

A script of ours is unwound by an exception that nobody else handles. A process of a launcher's has frames of others
below its script that would take that for a failure, so it ends where it stands, and does what its frames would do.
"""

import gc
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ullage.base.child_process import run_exit_handlers
from ullage.gpu.tracing.compiled import hurry_workers

_SECONDS: Final = 3.0  # for handlers of others, which may wait for what never comes


def end_in_the_middle(end: Callable[[], None]) -> None:
    """Shut workers down, run exit handlers, and end; where that takes too long, end without them."""

    def end_late() -> None:
        time.sleep(_SECONDS)
        end()

    threading.Thread(target=end_late, daemon=True).start()
    with suppress(Exception):
        _shut_loaders()
    hurry_workers()
    run_exit_handlers()
    end()


def _shut_loaders() -> None:
    """Have the workers of torch's loaders end by themselves: those that are killed leave folders of multiprocessing."""
    loaders = sys.modules.get("torch.utils.data.dataloader")
    kind = getattr(loaders, "_MultiProcessingDataLoaderIter", None)
    if kind is None or not multiprocessing.active_children():
        return
    for each in gc.get_objects():
        if issubclass(type(each), kind):
            each._shutdown_workers()
