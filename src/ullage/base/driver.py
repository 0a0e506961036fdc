"""The driver's counts of memory per card, from NVIDIA's management library (NVML), which nvidia-ml-py asks.

Asking starts no CUDA context and needs no torch. In a process that emulates a card the emulated NVML answers, which
knows that one process. NVML knows neither CUDA_VISIBLE_DEVICES nor which of PyTorch's tensors uses the memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple


class CardMemory(NamedTuple):
    """Memory of one card."""

    total_bytes: int
    used_bytes: int
    """Bytes in use by all processes together, contexts included."""


class Nvml:
    """NVML after it was started."""

    def __init__(self, library: ModuleType) -> None:
        self._library = library

    def call(self, function: str, *arguments: Any) -> Any:
        """Return the answer of a function of nvidia-ml-py; None where the driver lacks it or has no answer."""
        try:
            return getattr(self._library, function)(*arguments)
        except self._library.NVMLError:
            return None

    def handles(self) -> Iterator[tuple[int, Any]]:
        """Yield NVML's index and handle of each card that answers."""
        for index in range(self.call("nvmlDeviceGetCount") or 0):
            handle = self.call("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                yield index, handle

    def memory_of(self, handle: Any) -> CardMemory | None:
        """Return a card's bytes; None where it reports none (no permission, or a card without a count)."""
        memory = self.call("nvmlDeviceGetMemoryInfo", handle)
        return CardMemory(memory.total, memory.used) if memory is not None else None


class DriverSilentError(Exception):
    """There is no driver, or it does not answer; the text says which."""


@contextmanager
def asked() -> Iterator[Nvml]:
    """Start NVML and shut it down afterwards; other users of NVML in this process keep it.

    Raises:
        DriverSilentError: there is no driver, or it cannot be asked.
    """
    import pynvml  # only now: it takes longer than this package. It loads NVML by its SONAME, the emulated too

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        raise DriverSilentError("libnvidia-ml.so.1 cannot be loaded: there is no NVIDIA driver here") from None
    except pynvml.NVMLError as error:
        raise DriverSilentError(f"NVML cannot be started: {error} (it answers {error.value})") from None
    nvml = Nvml(pynvml)
    try:
        yield nvml
    finally:
        nvml.call("nvmlShutdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCount:
    """The memory of one card that is in use by all processes together, contexts included."""

    index: int
    name: str
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCount:
    """The driver's count for each card, or the reason why it cannot be asked."""

    cards: tuple[CardCount, ...] = ()
    why_not: str = ""


def count_used() -> DriverCount:
    """Ask the driver how much memory of every card is in use."""
    try:
        with asked() as driver:
            cards = tuple(
                CardCount(
                    index=index, name=driver.call("nvmlDeviceGetName", handle) or "", used_bytes=memory.used_bytes
                )
                for index, handle in driver.handles()
                if (memory := driver.memory_of(handle)) is not None
            )
    except DriverSilentError as why:
        return DriverCount(why_not=str(why))
    return DriverCount(cards=cards, why_not="" if cards else "no card of the driver reports its memory")
