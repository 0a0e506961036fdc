"""Checks the host for `ullage doctor`: memory limits, shared memory, pinned memory, and WSL."""

from collections.abc import Iterator
from typing import Final

from ullage.base.units import GIB, MIB, text_of_bytes
from ullage.running.diagnosis.facts import DiagnosisFinding, Host, MachineFacts, Weight

_DOCKERS_SHARED_BYTES: Final = 64 * MIB  # Docker's default size
_LITTLE_SHARED_BYTES: Final = 256 * MIB
_NEARLY_FULL_SHARE: Final = 0.9
_NOTABLE_PINNED_SHARE: Final = 0.5


def findings_of_surroundings(facts: MachineFacts) -> Iterator[DiagnosisFinding]:
    """Yield the problems with the host."""
    yield from _shared(facts.host)
    yield from _limit(facts.host)
    yield from _pinned(facts)
    if facts.host.is_wsl or facts.host.system == "Windows":
        yield DiagnosisFinding(
            name="spill",
            title="This driver may move GPU memory into host memory",
            seen="WSL" if facts.host.is_wsl else "Windows",
            why="When the GPU is full, the Windows driver may use host memory: programs do not fail, but become many "
            "times slower.",
            cure="In the NVIDIA Control Panel, under Manage 3D settings, set CUDA - Sysmem Fallback Policy to Prefer "
            "No Sysmem Fallback.",
            weight=Weight.NOTE,
        )


def _shared(host: Host) -> Iterator[DiagnosisFinding]:
    total, free = host.shared_total_bytes, host.shared_free_bytes
    if total is None or free is None:
        return
    if total <= _DOCKERS_SHARED_BYTES:
        yield DiagnosisFinding(
            name="shared-memory-small",
            title=f"/dev/shm has {text_of_bytes(total)}",
            seen=f"{text_of_bytes(free)} of it are free",
            why="DataLoader workers pass batches through /dev/shm, and die with 'Bus error' when /dev/shm is full.",
            cure="Start the container with --ipc=host or --shm-size=8g (Kubernetes: an emptyDir with medium: Memory).",
        )
    elif free < min(_LITTLE_SHARED_BYTES, total // 4):
        yield DiagnosisFinding(
            name="shared-memory-full",
            title=f"/dev/shm is nearly full: {text_of_bytes(free)} of {text_of_bytes(total)} are free",
            seen="files in /dev/shm",
            why="DataLoader workers pass batches through /dev/shm, and die with 'Bus error' when /dev/shm is full.",
            cure="List the files with ls -l /dev/shm. You can remove a file named torch_PID_... if the process PID has "
            "ended.",
        )


def _limit(host: Host) -> Iterator[DiagnosisFinding]:
    if host.limit_bytes is None or host.used_bytes is None or host.used_bytes < _NEARLY_FULL_SHARE * host.limit_bytes:
        return
    yield DiagnosisFinding(
        name="container-full",
        title="The container has nearly reached its memory limit",
        seen=f"{text_of_bytes(host.used_bytes)} of {text_of_bytes(host.limit_bytes)}",
        why="Beyond the container's memory limit, the kernel kills a process ('Killed', exit code 137) without a "
        "Python error.",
        cure="Give the container more memory, or use fewer workers, less pinned memory or less offloading.",
    )


def _pinned(facts: MachineFacts) -> Iterator[DiagnosisFinding]:
    pinned = facts.torch.pinned_bytes if facts.torch is not None else None
    of = min((size for size in (facts.host.limit_bytes, facts.host.memory_bytes) if size is not None), default=None)
    if not pinned or of is None or pinned < min(_NOTABLE_PINNED_SHARE * of, 16 * GIB):
        return
    yield DiagnosisFinding(
        name="pinned",
        title=f"PyTorch has pinned {text_of_bytes(pinned)} of host memory",
        seen=f"torch.cuda.host_memory_stats(), of {text_of_bytes(of)}",
        why="Pinned memory cannot be swapped; its blocks are rounded up to powers of two and kept after use. When the "
        "host has no more memory to pin, PyTorch reports 'CUDA error: out of memory'.",
        cure="Use pin_memory=False, or free the cached part: torch._C._host_emptyCache()",
        weight=Weight.PROBLEM if pinned >= _NOTABLE_PINNED_SHARE * of else Weight.NOTE,
    )
