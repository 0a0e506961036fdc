"""Measure the host memory of the processes that the script starts, such as DataLoader workers.

Only the private memory of each process is added, because a forked worker shares most pages with its parent. Files in
/dev/shm are counted separately.
"""

import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from ullage.base.child_process import descendants_of
from ullage.base.units import KIB
from ullage.predicting.prediction.host.memory import WorkersUse

_SECONDS: Final = 0.2
# The largest fraction of wall-clock time to spend on /proc. Reading the figures of a large process is slow.
_COST_SHARE: Final = 0.05
_PLANNER: Final = b"ullage.gpu.emulator.cudnn"
_SECTOR_BYTES: Final = 512  # The unit of st_blocks, according to stat(2).
_SHARED: Final = "/dev/shm/"


class HostWatch:
    """Measure the host memory of a process's child processes, such as DataLoader workers."""

    def __init__(self, process: int, root: Path = Path("/proc")) -> None:
        self._process, self._root = process, root
        self._next = 0.0
        self.use = WorkersUse()
        """The highest host memory of the child processes so far."""

    def look(self, *, now: bool = False) -> None:
        """Measure the host memory of the child processes now, unless the last measurement is recent. `now` forces a
        measurement.
        """
        began = time.monotonic()
        if began < self._next and not now:
            return
        worked = time.thread_time()  # CPU time, because on a busy machine wall-clock time passes without work done.
        with suppress(OSError, ValueError, IndexError):  # The process may have ended in the meantime.
            self._look()
        spent = time.thread_time() - worked
        self._next = began + max(_SECONDS, spent / _COST_SHARE)

    def _look(self) -> None:
        workers = [pid for pid in descendants_of(self._process, self._root) if not self._is_ours(pid)]
        private = sum(self._private_bytes(pid) for pid in workers)
        shared = self._shared_bytes([self._process, *workers])
        beside = max(0, shared - _fields(self._root / str(self._process) / "status").get("RssShmem", 0))
        seen = self.use
        self.use = replace(
            seen,
            count=max(seen.count, len(workers)),
            private_bytes=max(seen.private_bytes, private),
            shared_memory_bytes=max(seen.shared_memory_bytes, shared),
            beside_bytes=max(seen.beside_bytes, private + beside),
        )

    # The cuDNN planner does not exist in a run on a real GPU.
    def _is_ours(self, process: int) -> bool:
        try:
            return _PLANNER in (self._root / str(process) / "cmdline").read_bytes()
        except OSError:
            return True

    def _private_bytes(self, process: int) -> int:
        found = _fields(self._root / str(process) / "smaps_rollup")
        own = found.get("Private_Clean", 0) + found.get("Private_Dirty", 0)
        return max(0, own - found.get("Pss_Shmem", 0))  # Shared memory is counted by file.

    def _shared_bytes(self, processes: list[int]) -> int:
        paths: list[Path] = []
        for process in processes:
            with suppress(OSError):
                paths += (self._root / str(process) / "fd").iterdir()
        made = tuple(f"torch_{process}_" for process in processes)
        with suppress(OSError):
            paths += (path for path in Path(_SHARED).glob("torch_*") if path.name.startswith(made))
        files: dict[tuple[int, int], int] = {}
        for path in paths:
            with suppress(OSError):
                if path.parent == Path(_SHARED) or os.readlink(path).startswith(_SHARED):
                    status = path.stat()
                    files[status.st_dev, status.st_ino] = status.st_blocks * _SECTOR_BYTES
        return sum(files.values())


# The lines are "Name: NUMBER kB"; the result is in bytes.
def _fields(path: Path) -> dict[str, int]:
    found = {}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(":")
            words = value.split()
            if len(words) == 2 and words[1] == "kB":
                found[name] = int(words[0]) * KIB
    return found
