"""Run work items in threads of this process, and limit the number of threads.

Threads are enough, because work that runs a script starts a separate process and waits for it.
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from ullage.base.engines.engine import PlainData, WorkEngine, call, refused


class LocalEngine(WorkEngine):
    """Runs work items in threads on this machine."""

    def __init__(self, workers: int) -> None:
        self.name = f"{workers} local worker{'' if workers == 1 else 's'}"
        self.at_once = workers
        self._pool = ThreadPoolExecutor(workers)
        self._cancelled = threading.Event()

    def submit(self, function: str, payload: PlainData) -> "Future[PlainData]":
        """Schedule a function call in the next free thread."""
        try:
            return self._pool.submit(call, function, payload, self._cancelled.is_set)
        except RuntimeError:  # the pool is shut down
            return refused()

    def cancel(self) -> None:
        """Cancel all running work items, and wait until they have ended."""
        self._cancelled.set()
        self._pool.shutdown(cancel_futures=True)
