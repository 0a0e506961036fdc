"""Read the memory in use on each GPU from NVML, NVIDIA's management library.

The query needs neither torch nor a CUDA context. In a process with an emulated GPU, the emulated NVML answers. NVML
ignores CUDA_VISIBLE_DEVICES and does not know PyTorch's tensors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple


class CardMemory(NamedTuple):
    """The total memory and the used memory of one GPU, in bytes."""

    total_bytes: int
    used_bytes: int
    """The bytes in use by all processes on the GPU, including CUDA contexts."""


class Nvml:
    """Calls NVML functions. Create it after NVML was initialized."""

    def __init__(self, library: ModuleType) -> None:
        self._library = library

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of nvidia-ml-py. Return None if the driver lacks the function or reports an error."""
        try:
            return getattr(self._library, function)(*arguments)
        except self._library.NVMLError:
            return None

    def handles(self) -> Iterator[tuple[int, Any]]:
        """Yield the NVML index and handle of each GPU that responds."""
        for index in range(self.call("nvmlDeviceGetCount") or 0):
            handle = self.call("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                yield index, handle

    def memory_of(self, handle: Any) -> CardMemory | None:
        """Return the total and used memory of a GPU, or None if the driver does not report it."""
        memory = self.call("nvmlDeviceGetMemoryInfo", handle)
        return CardMemory(memory.total, memory.used) if memory is not None else None


class DriverSilentError(Exception):
    """The NVIDIA driver is missing or does not respond."""


@contextmanager
def asked() -> Iterator[Nvml]:
    """Initialize NVML, and shut it down when the context ends.

    Raises:
        DriverSilentError: the driver is missing or does not respond.
    """
    import pynvml  # slow to import; loads the real or emulated NVML by its SONAME

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        raise DriverSilentError("libnvidia-ml.so.1 cannot be loaded: no NVIDIA driver is installed") from None
    except pynvml.NVMLError as error:
        raise DriverSilentError(f"NVML cannot be initialized: {error} (NVML error {error.value})") from None
    nvml = Nvml(pynvml)
    try:
        yield nvml
    finally:
        nvml.call("nvmlShutdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCount:
    """The memory of one GPU that all processes together use, including CUDA contexts."""

    index: int
    name: str
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCount:
    """The used memory of each GPU according to the driver, or the reason why it is not available."""

    cards: tuple[CardCount, ...] = ()
    why_not: str = ""


def count_used() -> DriverCount:
    """Return the used memory of each GPU, as the driver reports it."""
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
    return DriverCount(cards=cards, why_not="" if cards else "the driver does not report the memory of any GPU")
