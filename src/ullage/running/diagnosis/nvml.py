"""Reads the GPUs and their processes with NVML. MIG instances are not included."""

import os
from collections.abc import Iterator
from typing import Any, Final

from ullage.base.driver import DriverSilentError, Nvml, asked
from ullage.running.diagnosis.facts import CardFacts, CardProcess, Driver
from ullage.running.diagnosis.process import process_of

# 1 is "exclusive thread" in old drivers.
_MODES: Final[dict[int | None, str]] = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}


def read_cards() -> tuple[Driver | None, tuple[CardFacts, ...]]:
    """Return the NVIDIA driver and its GPUs. Without a driver, return None and an empty tuple."""
    try:
        with asked() as nvml:
            found = (_card(nvml, index, handle) for index, handle in nvml.handles())
            return _driver(nvml), tuple(card for card in found if card is not None)
    except DriverSilentError:
        return None, ()


def _driver(nvml: Nvml) -> Driver:
    number = nvml.call("nvmlSystemGetCudaDriverVersion_v2") or 0
    version = nvml.call("nvmlSystemGetDriverVersion") or ""
    return Driver(version=version, cuda=(number // 1000, number % 1000 // 10))


def _card(nvml: Nvml, index: int, handle: Any) -> CardFacts | None:
    memory = nvml.memory_of(handle)
    if memory is None:
        return None
    return CardFacts(
        index=index,
        name=nvml.call("nvmlDeviceGetName", handle) or "",
        uuid=nvml.call("nvmlDeviceGetUUID", handle) or "",
        total_bytes=memory.total_bytes,
        used_bytes=memory.used_bytes,
        compute_capability=nvml.call("nvmlDeviceGetCudaComputeCapability", handle),
        compute_mode=_MODES.get(nvml.call("nvmlDeviceGetComputeMode", handle)),
        processes=tuple(_processes(nvml, handle)),
    )


def _processes(nvml: Nvml, handle: Any) -> Iterator[CardProcess]:
    # a process that uses both compute and graphics is in both lists of NVML
    seen = {os.getpid()}
    for kind in ("Compute", "Graphics"):
        for one in nvml.call(f"nvmlDeviceGet{kind}RunningProcesses_v3", handle) or ():
            if one.pid not in seen:
                seen.add(one.pid)
                yield process_of(one.pid, one.usedGpuMemory)
