"""What the driver says of its cards: the memory in use, of all processes together, contexts included (NVML).

Asking starts no CUDA context and needs no torch. In a process that emulates a card the emulated NVML answers, which
knows that one process. It does not know who uses the memory.
"""

import ctypes
from dataclasses import dataclass
from typing import Any, Final

_SUCCESS: Final = 0
_NAME_LETTERS: Final = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCount:
    """The memory of one card that is in use, in bytes; `index` is NVML's, which knows no CUDA_VISIBLE_DEVICES."""

    index: int
    name: str
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCount:
    """What the driver counts, card by card, or why it cannot be asked."""

    cards: tuple[CardCount, ...] = ()
    why_not: str = ""


def count_used() -> DriverCount:
    """Ask the driver how much memory of every card is in use."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")  # by its SONAME: the emulated one, where it is loaded
    except OSError:
        return DriverCount(why_not="libnvidia-ml.so.1 cannot be loaded: there is no NVIDIA driver here")
    status = nvml.nvmlInit_v2()
    if status != _SUCCESS:
        return DriverCount(why_not=f"NVML cannot be started (nvmlInit_v2 answers {status})")
    try:
        count = ctypes.c_uint()
        if (status := nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))) != _SUCCESS:
            return DriverCount(why_not=f"NVML does not count its cards (nvmlDeviceGetCount_v2 answers {status})")
        cards = [_card(nvml, index) for index in range(count.value)]
    finally:
        nvml.nvmlShutdown()
    if not cards:
        return DriverCount(why_not="the driver has no card")
    return DriverCount(cards=tuple(card for card in cards if card is not None))


def _card(nvml: Any, index: int) -> CardCount | None:
    """Count one card; None where it does not answer (no permission, or a form of card without such a count)."""
    handle = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != _SUCCESS:
        return None
    memory = (ctypes.c_ulonglong * 3)()  # total, free, used
    if nvml.nvmlDeviceGetMemoryInfo(handle, memory) != _SUCCESS:
        return None
    name = ctypes.create_string_buffer(_NAME_LETTERS)
    nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(_NAME_LETTERS))
    return CardCount(index=index, name=name.value.decode(errors="replace"), used_bytes=memory[2])
