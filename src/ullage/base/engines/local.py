"""The engine of one machine: so many pieces of work at a time, each in a thread of this process.

Work that runs a script has it in a process of its own anyhow, and waits; so a thread is enough.
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from ullage.base.engines.engine import PlainData, WorkEngine, call, refused


class LocalEngine(WorkEngine):
    """Does work on this machine."""

    def __init__(self, workers: int) -> None:
        """Begin with so many workers; nothing is started before there is work."""
        self.name = f"{workers} local worker{'' if workers == 1 else 's'}"
        self.at_once = workers
        self._pool = ThreadPoolExecutor(workers)
        self._cancelled = threading.Event()

    def submit(self, function: str, payload: PlainData) -> "Future[PlainData]":
        """Have a thread call the function when one is free."""
        try:
            return self._pool.submit(call, function, payload, self._cancelled.is_set)
        except RuntimeError:  # the pool is shut down
            return refused()

    def cancel(self) -> None:
        """Tell what runs that it is not wanted any more, and wait for its end."""
        self._cancelled.set()
        self._pool.shutdown(cancel_futures=True)
