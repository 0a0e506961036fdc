"""Reads facts about a process from /proc, such as its name and its owner.

Names of processes in other containers are not available.
"""

import os
from pathlib import Path
from typing import Final

from ullage.running.diagnosis.facts import CardProcess

_WORKER: Final = "pt_data_worker"  # torch/utils/data/_utils/worker.py
_REAPERS: Final = ("systemd", "init", "tini", "dumb-init", "docker-init", "catatonit")
_PROC: Final = Path("/proc")


def process_of(pid: int, used_bytes: int | None) -> CardProcess:
    """Return the facts about a process. `used_bytes` is the GPU memory that it uses."""
    try:
        name = (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
        owner = (_PROC / str(pid)).stat().st_uid
        parent, group = _parent_and_group(pid)
    except (OSError, ValueError):
        return CardProcess(pid=pid, name="", used_bytes=used_bytes, is_ours=False)
    is_worker = name.startswith(_WORKER)
    return CardProcess(
        pid=pid,
        name=name,
        used_bytes=used_bytes,
        is_ours=owner == os.getuid(),
        is_worker=is_worker,
        is_orphan=_is_reaper(parent, is_worker=is_worker) and (is_worker or not (_PROC / str(group)).exists()),
    )


def is_alive(pid: int, started: float | None = None) -> bool:
    """Return whether a process is running.

    Args:
        pid: the process ID.
        started: a time at which the process was already running, in seconds since 1970. A process that started later is
            another process with the same ID.
    """
    try:
        fields = _fields_of(pid)
        boot = next(line for line in (_PROC / "stat").read_text().splitlines() if line.startswith("btime "))
        began = float(boot.split()[1]) + float(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return False
    return fields[0] not in "ZX" and (started is None or began <= started + 2)  # btime is in whole seconds


def _is_reaper(parent: int, *, is_worker: bool) -> bool:
    # In a container, process 1 may adopt orphaned processes, or it may be the training itself.
    try:
        is_known = (_PROC / str(parent) / "comm").read_text().strip() in _REAPERS
    except OSError:
        is_known = False
    return is_known or (parent == 1 and not is_worker)


def _parent_and_group(pid: int) -> tuple[int, int]:
    fields = _fields_of(pid)
    return int(fields[1]), int(fields[2])


def _fields_of(pid: int) -> list[str]:
    # The process name comes first and may contain any character.
    return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
