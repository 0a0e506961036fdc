"""What the driver says of its cards, by NVIDIA's management library (NVML): one place that asks it.

Asking starts no CUDA context and needs no torch. In a process that emulates a card the emulated NVML answers, which
knows that one process. NVML knows neither CUDA_VISIBLE_DEVICES nor which of PyTorch's tensors uses the memory.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

_SUCCESS: Final = 0
_ABSENT: Final = -1
_TEXT_BYTES: Final = 128


class Memory(ctypes.Structure):
    """Field for field nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))
    total: int
    free: int
    used: int


class Nvml:
    """NVML, which has been started."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def status_of(self, function: str, *arguments: object) -> int:
        """Call a function and return its status, 0 where it succeeded; -1 where an older driver does not have it."""
        try:
            return int(getattr(self._library, function)(*arguments))
        except AttributeError:
            return _ABSENT

    def did(self, function: str, *arguments: object) -> bool:
        """Call a function, and tell whether it was there and succeeded."""
        return self.status_of(function, *arguments) == _SUCCESS

    def text(self, function: str, *handles: object) -> str:
        """Return a text that a function writes; an empty one where it fails."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        return text.value.decode(errors="replace") if self.did(function, *handles, text, _TEXT_BYTES) else ""

    def handles(self) -> Iterator[tuple[int, ctypes.c_void_p]]:
        """Yield NVML's number of each card that answers, and its handle."""
        count = ctypes.c_uint()
        self.did("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self.did("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle)):
                yield index, handle

    def memory_of(self, handle: ctypes.c_void_p) -> Memory | None:
        """Return a card's bytes; None where it does not tell (no permission, or a form of card without a count)."""
        memory = Memory()
        return memory if self.did("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory)) else None


class DriverSilentError(Exception):
    """There is no driver, or it does not answer; its text says which."""


@contextmanager
def asked() -> Iterator[Nvml]:
    """Start NVML, and end it afterwards.

    Raises:
        DriverSilentError: there is no driver, or it cannot be asked.
    """
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")  # by its SONAME: the emulated one, where it is loaded
    except OSError:
        raise DriverSilentError("libnvidia-ml.so.1 cannot be loaded: there is no NVIDIA driver here") from None
    driver = Nvml(library)
    status = driver.status_of("nvmlInit_v2")
    if status != _SUCCESS:
        raise DriverSilentError(f"NVML cannot be started (nvmlInit_v2 answers {status})")
    try:
        yield driver
    finally:
        driver.did("nvmlShutdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCount:
    """The memory of one card that is in use, of all processes together and contexts included."""

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
        with asked() as driver:
            cards = tuple(
                CardCount(index=index, name=driver.text("nvmlDeviceGetName", handle), used_bytes=memory.used)
                for index, handle in driver.handles()
                if (memory := driver.memory_of(handle)) is not None
            )
    except DriverSilentError as why:
        return DriverCount(why_not=str(why))
    return DriverCount(cards=cards, why_not="" if cards else "the driver has no card that tells its memory")
