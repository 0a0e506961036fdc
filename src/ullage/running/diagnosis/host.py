"""Reads facts about the host: its memory, the container's memory limit, and the size of /dev/shm."""

import os
import platform
from pathlib import Path
from typing import Final

from ullage.base.units import KIB
from ullage.running.diagnosis.facts import Host

_NO_LIMIT_BYTES: Final = 1 << 60  # control groups version 1 write a number of this size for "unlimited"
_FILES: Final = {  # the files with the limit and the usage, and the part of the usage that the kernel can reclaim
    "v1": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    "v2": ("memory.max", "memory.current", "inactive_file"),
}


def read_host(root: Path = Path("/")) -> Host:
    """Return the facts about the host. `root` is the root folder of its file system."""
    limit, used = _container(root)
    total, free = _space_of(root / "dev/shm")
    return Host(
        system=platform.system(),
        is_wsl="microsoft" in (_text(root / "proc/sys/kernel/osrelease") or "").lower(),
        memory_bytes=_of_meminfo(root, "MemTotal"),
        limit_bytes=limit,
        used_bytes=used,
        shared_total_bytes=total,
        shared_free_bytes=free,
    )


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the host memory that programs can still allocate without swapping, in bytes. None if it is unknown.

    A container's memory limit is taken into account.
    """
    limit, used = _container(root)
    left = [max(0, limit - used)] if limit is not None and used is not None else []
    known = _of_meminfo(root, "MemAvailable")
    return min([*left, known] if known is not None else left, default=None)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _of_meminfo(root: Path, name: str) -> int | None:
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        if line.startswith(f"{name}:"):
            kib = _number(line.split()[1])
            return None if kib is None else kib * KIB
    return None


def _space_of(folder: Path) -> tuple[int | None, int | None]:
    try:
        space = os.statvfs(folder)
    except OSError:
        return None, None
    return space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize


def _container(root: Path) -> tuple[int | None, int | None]:
    found: list[tuple[int, int | None]] = []
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        group = top / path.lstrip("/")
        for folder in [group, *group.parents]:
            if not folder.is_relative_to(top):
                break
            limit = _limit(folder, "v1" if controllers else "v2")
            if limit is not None:
                found.append(limit)
    return min(found, key=lambda pair: pair[0], default=(None, None))


def _limit(folder: Path, version: str) -> tuple[int, int | None] | None:
    limit_file, used_file, dropped_name = _FILES[version]
    limit, used = _number(_text(folder / limit_file)), _number(_text(folder / used_file))
    if limit is None or limit >= _NO_LIMIT_BYTES:
        return None
    for line in (_text(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if used is not None and name == dropped_name:
            used -= _number(value) or 0
    return limit, used
