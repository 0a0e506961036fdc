"""What is read on the GPU besides PyTorch's counters: the driver's view, the process's mappings, a snapshot."""

import ctypes
import pickle
import re
from functools import cache
from typing import Any

from .record import packed

COUNTERS = ("allocated_bytes", "requested_bytes", "reserved_bytes")
MOST_EVENTS = 200_000


@cache
def _nvml() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    handle = ctypes.c_void_p()
    nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
    return nvml, handle


def nvml_used_bytes() -> int:
    """Return what NVML counts as used on the first GPU, by every process (nvmlDeviceGetMemoryInfo)."""
    nvml, handle = _nvml()
    memory = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
    nvml.nvmlDeviceGetMemoryInfo(handle, memory)
    return int(memory[2])


def driver_version() -> str:
    """Return the driver's version as NVML tells it."""
    nvml, _ = _nvml()
    text = ctypes.create_string_buffer(96)
    nvml.nvmlSystemGetDriverVersion(text, 96)
    return text.value.decode(errors="replace")


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
