"""What is read on the GPU besides PyTorch's counters: the driver's view, the process's mappings, a snapshot."""

import ctypes
import os
import pickle
import re
import time
from functools import cache
from typing import Any

from .record import packed

COUNTERS = ("allocated_bytes", "requested_bytes", "reserved_bytes")
MOST_EVENTS = 200_000
SETTLED_SECONDS = 0.5


GPU_VARIABLE = "ULLAGE_MEASURED_GPU"
"""The UUID of the GPU that is measured, for processes that read NVML before torch is imported."""


IGNORED_VARIABLE = "ULLAGE_IGNORED_VARIABLES"
"""The names of variables of the caller's that questions do not get."""


@cache
def _nvml() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """Return NVML and the handle of the measured GPU: PyTorch's first one, whatever its number is for NVML."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    handle = ctypes.c_void_p()
    _check(nvml.nvmlInit_v2(), "nvmlInit_v2")
    uuid = os.environ.get(GPU_VARIABLE, "")
    name = f"GPU-{uuid.removeprefix('GPU-')}"  # as NVML writes it; PyTorch leaves the beginning out
    status = nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)) if uuid else 1
    if status:  # one GPU, and nobody has said which
        _check(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)), "nvmlDeviceGetHandleByIndex_v2")
    return nvml, handle


def _check(status: int, function: str) -> None:
    if status:
        raise RuntimeError(f"{function} of NVML failed with status {status}; is the driver loaded?")


def nvml_used_bytes() -> int:
    """Return what NVML counts as used on the measured GPU, by every process (nvmlDeviceGetMemoryInfo)."""
    nvml, handle = _nvml()
    memory = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
    _check(nvml.nvmlDeviceGetMemoryInfo(handle, memory), "nvmlDeviceGetMemoryInfo")
    return int(memory[2])


def settled_used_bytes() -> int:
    """Return what NVML counts once it no longer falls: the driver takes back a process's memory after its end."""
    least, since = nvml_used_bytes(), time.monotonic()
    while time.monotonic() - since < SETTLED_SECONDS:
        time.sleep(SETTLED_SECONDS / 10)
        used = nvml_used_bytes()
        if used < least:
            least, since = used, time.monotonic()
    return least


def driver_version() -> str:
    """Return the driver's version as NVML reports it."""
    nvml, _ = _nvml()
    text = ctypes.create_string_buffer(96)
    _check(nvml.nvmlSystemGetDriverVersion(text, 96), "nvmlSystemGetDriverVersion")
    return text.value.decode(errors="replace")


def is_own_process_in_nvml() -> bool | None:
    """Return whether NVML lists this process by its own number, which decides what PyTorch's errors say of it.

    In a container the driver may have another number for it. None: NVML does not list processes.
    """
    nvml, handle = _nvml()
    count = ctypes.c_uint(256)
    listed = (ctypes.c_ubyte * (24 * count.value))()  # nvmlProcessInfo_t: pid, used memory, two instances
    if nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), ctypes.byref(listed)):
        return None
    pids = [int.from_bytes(bytes(listed[24 * n : 24 * n + 4]), "little") for n in range(count.value)]
    return os.getpid() in pids


def peaks() -> dict[str, int]:
    """Return PyTorch's peaks since `reset_peaks`, in bytes."""
    import torch

    stats = torch.cuda.memory_stats()
    return {name: stats[f"{name}.all.peak"] for name in COUNTERS}


def reset_peaks() -> None:
    """Begin new peaks."""
    import torch

    torch.cuda.reset_peak_memory_stats()


def mappings() -> list[list[Any]]:
    """Return this process's mappings: start, end, permissions, and the file's name without its folder."""
    found: list[list[Any]] = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            words = line.split(maxsplit=5)
            low, _, high = words[0].partition("-")
            name = re.sub(r".*/", "", words[5].strip()) if len(words) > 5 else ""
            found.append([int(low, 16), int(high, 16), words[1], name])
    return found


def record_history() -> None:
    """Have PyTorch record every allocation without stacks."""
    import torch

    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=MOST_EVENTS)


def snapshot() -> str:
    """Return PyTorch's snapshot as an attachment: its pickle, which `ullage explain` reads as data."""
    import torch

    return packed(pickle.dumps(torch.cuda.memory._snapshot()))
