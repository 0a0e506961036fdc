"""The cards and who is on them, as the driver tells; without a driver there are none. MIG instances are not seen."""

import ctypes
import os
from collections.abc import Iterator
from typing import Final

from ullage.diagnosis.facts import Card, Driver, Process
from ullage.diagnosis.process import process_of
from ullage.driver import DriverSilentError, Nvml, asked

_MOST_PROCESSES: Final = 1024
_UNKNOWN: Final = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
_MODES: Final = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}  # 1: per thread, of old drivers


class _Process(ctypes.Structure):
    """Field for field nvmlProcessInfo_v2_t, which nvmlDeviceGet...RunningProcesses_v3 fills."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def look_at_cards() -> tuple[Driver | None, tuple[Card, ...]]:
    """Return the driver and its cards; None and none without a driver."""
    try:
        with asked() as nvml:
            found = (_card(nvml, index, handle) for index, handle in nvml.handles())
            return _driver(nvml), tuple(card for card in found if card is not None)
    except DriverSilentError:
        return None, ()


def _driver(nvml: Nvml) -> Driver:
    number = ctypes.c_int()
    nvml.did("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(number))
    version = nvml.text("nvmlSystemGetDriverVersion")
    return Driver(version=version, cuda=(number.value // 1000, number.value % 1000 // 10))


def _card(nvml: Nvml, index: int, handle: ctypes.c_void_p) -> Card | None:
    memory = nvml.memory_of(handle)
    if memory is None:
        return None
    major, minor, mode = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    has_capability = nvml.did("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    has_mode = nvml.did("nvmlDeviceGetComputeMode", handle, ctypes.byref(mode))
    return Card(
        index=index,
        name=nvml.text("nvmlDeviceGetName", handle),
        uuid=nvml.text("nvmlDeviceGetUUID", handle),
        total_bytes=memory.total,
        used_bytes=memory.used,
        compute_capability=(major.value, minor.value) if has_capability else None,
        compute_mode=_MODES.get(mode.value) if has_mode else None,
        processes=tuple(_processes(nvml, handle)),
    )


def _processes(nvml: Nvml, handle: ctypes.c_void_p) -> Iterator[Process]:
    """Yield every other process once; one that computes and draws is listed twice by the driver."""
    seen = {os.getpid()}
    for kind in ("Compute", "Graphics"):
        count = ctypes.c_uint(_MOST_PROCESSES)
        found = (_Process * _MOST_PROCESSES)()
        if not nvml.did(f"nvmlDeviceGet{kind}RunningProcesses_v3", handle, ctypes.byref(count), found):
            continue
        for one in found[: count.value]:
            if one.pid not in seen:
                seen.add(one.pid)
                yield process_of(one.pid, None if one.used == _UNKNOWN else one.used)
