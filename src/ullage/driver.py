"""What the driver says of its cards, by NVIDIA's management library (NVML): one place that asks it, by nvidia-ml-py.

Asking starts no CUDA context and needs no torch. In a process that emulates a card the emulated NVML answers, which
knows that one process. NVML knows neither CUDA_VISIBLE_DEVICES nor which of PyTorch's tensors uses the memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple


class Memory(NamedTuple):
    """Of one card."""

    total_bytes: int
    used_bytes: int
    """By all processes together, contexts included."""


class Nvml:
    """NVML, which has been started."""

    def __init__(self, library: ModuleType) -> None:
        self._library = library

    def ask(self, function: str, *arguments: Any) -> Any:
        """Return what a function of nvidia-ml-py answers; None where the driver does not have it, or does not tell."""
        try:
            return getattr(self._library, function)(*arguments)
        except self._library.NVMLError:
            return None

    def handles(self) -> Iterator[tuple[int, Any]]:
        """Yield NVML's number of each card that answers, and its handle."""
        for index in range(self.ask("nvmlDeviceGetCount") or 0):
            handle = self.ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                yield index, handle

    def memory_of(self, handle: Any) -> Memory | None:
        """Return a card's bytes; None where it does not tell (no permission, or a form of card without a count)."""
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        return Memory(memory.total, memory.used) if memory is not None else None


class DriverSilentError(Exception):
    """There is no driver, or it does not answer; its text says which."""


@contextmanager
def asked() -> Iterator[Nvml]:
    """Start NVML, and end it afterwards; whoever else in the process has started it keeps it.

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
        nvml.ask("nvmlShutdown")


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
                CardCount(index=index, name=driver.ask("nvmlDeviceGetName", handle) or "", used_bytes=memory.used_bytes)
                for index, handle in driver.handles()
                if (memory := driver.memory_of(handle)) is not None
            )
    except DriverSilentError as why:
        return DriverCount(why_not=str(why))
    return DriverCount(cards=cards, why_not="" if cards else "the driver has no card that tells its memory")
