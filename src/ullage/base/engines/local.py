"""The engine that works on this machine. It runs each work item in a thread of this process and limits their number.

Threads are enough, because work that runs a script starts a separate process for the script and waits for it.
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from ullage.base.engines.engine import PlainData, WorkEngine, call, refused


class LocalEngine(WorkEngine):
    """An engine that works on this machine."""

    def __init__(self, workers: int) -> None:
        self.name = f"{workers} local worker{'' if workers == 1 else 's'}"
        self.at_once = workers
        self._pool = ThreadPoolExecutor(workers)
        self._cancelled = threading.Event()

    def submit(self, function: str, payload: PlainData) -> "Future[PlainData]":
        """Schedule a call of a function in the next free thread."""
        try:
            return self._pool.submit(call, function, payload, self._cancelled.is_set)
        except RuntimeError:  # the pool is shut down
            return refused()

    def cancel(self) -> None:
        """Signal to the running work items that they are cancelled, and wait until all of them have ended."""
        self._cancelled.set()
        self._pool.shutdown(cancel_futures=True)
