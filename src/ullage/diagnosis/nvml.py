"""The cards as NVIDIA's management library tells of them, which makes no context on any of them.

The library is the driver's own and is asked by `ctypes`. Without a driver there are no cards. It does not know which
cards CUDA_VISIBLE_DEVICES shows, nor MIG instances.
"""

import ctypes
import os
from collections.abc import Iterator
from typing import Final

from ullage.diagnosis.facts import Card, Driver, Process
from ullage.diagnosis.process import process_of

_LIBRARY: Final = "libnvidia-ml.so.1"
_TEXT_BYTES: Final = 128
_MOST_PROCESSES: Final = 1024
_UNKNOWN: Final = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
_MODES: Final = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}  # 1: per thread, of old drivers


class _Memory(ctypes.Structure):
    """Field for field nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


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
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None, ()
    if not _did(library, "nvmlInit_v2"):
        return None, ()
    try:
        count = ctypes.c_uint()
        _did(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        cards = tuple(card for index in range(count.value) if (card := _card(library, index)) is not None)
        return _driver(library), cards
    finally:
        _did(library, "nvmlShutdown")


def _did(library: ctypes.CDLL, function: str, *arguments: object) -> bool:
    """Call a function, and tell whether it was there and succeeded."""
    try:
        return int(getattr(library, function)(*arguments)) == 0
    except AttributeError:  # an older driver
        return False


def _text(library: ctypes.CDLL, function: str, *handles: object) -> str:
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    return text.value.decode(errors="replace") if _did(library, function, *handles, text, _TEXT_BYTES) else ""


def _driver(library: ctypes.CDLL) -> Driver:
    number = ctypes.c_int()
    _did(library, "nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(number))
    version = _text(library, "nvmlSystemGetDriverVersion")
    return Driver(version=version, cuda=(number.value // 1000, number.value % 1000 // 10))


def _card(library: ctypes.CDLL, index: int) -> Card | None:
    handle = ctypes.c_void_p()
    memory = _Memory()
    if not _did(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle)):
        return None
    if not _did(library, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory)):
        return None
    major, minor, mode = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    has_capability = _did(
        library, "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor)
    )
    has_mode = _did(library, "nvmlDeviceGetComputeMode", handle, ctypes.byref(mode))
    return Card(
        index=index,
        name=_text(library, "nvmlDeviceGetName", handle),
        uuid=_text(library, "nvmlDeviceGetUUID", handle),
        total_bytes=memory.total,
        used_bytes=memory.used,
        compute_capability=(major.value, minor.value) if has_capability else None,
        compute_mode=_MODES.get(mode.value) if has_mode else None,
        processes=tuple(_processes(library, handle)),
    )


def _processes(library: ctypes.CDLL, handle: ctypes.c_void_p) -> Iterator[Process]:
    """Yield every other process once; one that computes and draws is listed twice by the driver."""
    seen = {os.getpid()}
    for kind in ("Compute", "Graphics"):
        count = ctypes.c_uint(_MOST_PROCESSES)
        found = (_Process * _MOST_PROCESSES)()
        if not _did(library, f"nvmlDeviceGet{kind}RunningProcesses_v3", handle, ctypes.byref(count), found):
            continue
        for one in found[: count.value]:
            if one.pid not in seen:
                seen.add(one.pid)
                yield process_of(one.pid, None if one.used == _UNKNOWN else one.used)
