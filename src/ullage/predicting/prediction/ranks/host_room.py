"""Whether the host has memory for one more process that runs a rank, beside those that run."""

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ullage.running.diagnosis.host import available_bytes


def _own_bytes(process: int) -> int:
    """Return the memory that a process has for itself; 0 where it is gone."""
    with suppress(OSError, ValueError, IndexError):
        pages = Path(f"/proc/{process}/statm").read_text().split()
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
    return 0


class HostRoom:
    """The processes that run ranks, and what the host has left for more of them."""

    def __init__(
        self, available: Callable[[], int | None] = available_bytes, own: Callable[[int], int] = _own_bytes
    ) -> None:
        """Take what tells the host's free memory (None where that is not known) and a process's own, in bytes."""
        self._available = available
        self._own = own
        self._processes: Counter[int] = Counter()

    def come(self, process: int) -> None:
        """Count a process, once more where it comes twice."""
        self._processes[process] += 1

    def go(self, process: int) -> None:
        """Count it once less."""
        self._processes -= Counter([process])

    def has_room(self, coming: int) -> bool:
        """Tell whether one more process fits, and as much again stays free.

        Each is taken to become as large as the largest is now. A rank that is asked early, and loads something large
        into the host's memory later, is not foreseen.

        Args:
            coming: how many more were started, which are not counted yet.
        """
        available = self._available()
        sizes = [self._own(process) for process in self._processes]
        if available is None or not sizes:
            return True
        largest = max(sizes)
        grows = sum(largest - size for size in sizes) + coming * largest
        return available - grows >= 2 * largest
