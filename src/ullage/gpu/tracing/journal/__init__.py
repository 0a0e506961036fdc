"""Read the journal, which records every allocation and free of GPU memory in order.

PyTorch reports allocations to its profiler through `c10::reportMemoryUsageToProfiler` (torch 2.6 to 2.15). The C part
(`journal.c`) replaces this function, so it must be loaded before torch. It receives sizes after rounding, but not the
requested sizes.
"""

import ctypes
import threading
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ullage.base.errors import EmulationError
from ullage.gpu.tracing.journal.host import HostLedger
from ullage.gpu.tracing.journal.stacks import JournalStacks

Entries = npt.NDArray[np.void]

# struct journal_entry
ENTRY: Final = np.dtype(
    [
        ("address", "<u8"),
        ("size", "<i8"),
        ("allocated", "<i8"),
        ("reserved", "<i8"),
        ("kind", "<u2"),
        ("device", "<i2"),
        ("phase", "<u2"),
        ("flags", "<u2"),
        ("stack", "<u4"),
        ("module", "<u4"),
    ]
)
GRAD_ENABLED: Final = 1
OTHER_THREAD: Final = 2
_RECENT: Final = 1 << 16  # JOURNAL_RECENT in journal.h


class EntryKind(IntEnum):
    """The kind of a journal entry. The values are those of `enum journal_kind`."""

    ALLOC = 1
    FREE = 2
    OOM = 3
    WORKSPACE = 4
    MARK = 5


class Phase(IntEnum):
    """The phase of the program, such as forward or backward, in which a journal entry was recorded."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


_READ_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_uint64)


@cache
def library() -> ctypes.CDLL:
    """Return the compiled library that records allocations and frees. The first call loads the library."""
    path = Path(__file__).parent / "libullage_journal.so"
    if not path.exists():
        raise EmulationError(
            f"the compiled journal is missing from this installation ({path}); it is built on Linux x86-64 when the "
            "package is installed: pip install --force-reinstall . (in the source tree)"
        )
    loaded = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    loaded.journal_length.restype = ctypes.c_uint64
    loaded.journal_lost.restype = ctypes.c_uint64
    loaded.journal_mark.restype = ctypes.c_uint64
    loaded.journal_mark.argtypes = [ctypes.c_uint64]
    loaded.journal_read.restype = ctypes.c_uint64
    loaded.journal_read.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p]
    loaded.journal_set_phase.argtypes = [ctypes.c_uint16]
    loaded.journal_set_module.argtypes = [ctypes.c_uint32]
    loaded.journal_set_module.restype = ctypes.c_uint32
    loaded.journal_set_read_callback.argtypes = [_READ_CALLBACK]
    return loaded


class Journal:
    """Records the GPU memory allocations of this process. Create it before torch is imported."""

    def __init__(self) -> None:
        loaded = library()
        self.length: Callable[[], int] = loaded.journal_length
        self.set_phase: Callable[[int], None] = loaded.journal_set_phase
        self.set_module: Callable[[int], int] = loaded.journal_set_module
        self._mark = loaded.journal_mark
        self._library = loaded
        self._callback: Any = None
        self.stacks = JournalStacks(loaded)
        """Returns the Python stack for a number in the journal's column `stack`."""
        self.host = HostLedger(loaded, self.stacks)
        """Counts the large allocations of host memory in this process."""

    def open(self) -> None:
        """Start to record GPU memory allocations. The calling thread counts as the main thread."""
        self._library.journal_open()

    def close(self) -> None:
        """Stop recording. The recorded entries stay readable."""
        self._library.journal_close()

    def mark(self, number: int = 0) -> int:
        """Add an entry to the journal that marks the present moment, and return its index."""
        return int(self._mark(number))

    def on_value_read(self, callback: Callable[[str, int], None]) -> None:
        """Call `callback` whenever the script reads a value from an emulated GPU.

        The arguments of `callback` are the names of the operators and the number of bytes.
        """

        def received(ops: bytes, size: int) -> None:
            callback(ops.decode(errors="replace"), size)

        self._callback = _READ_CALLBACK(received)  # keeps the callback alive for as long as C may call it
        self._library.journal_set_read_callback(self._callback)

    def entries(self) -> Entries:
        """Return a copy of all journal entries, as a structured array of the type `ENTRY`."""
        count = int(self.length())
        entries = np.empty(count, ENTRY)
        copied = int(self._library.journal_read(0, count, entries.ctypes.data))
        return entries[:copied]

    def tell_exit_status(self, descriptor: int) -> None:
        """Write {"event": "exit", "status": N} to a socket when this process ends, where N is its exit status."""
        self._library.exit_status_tell(descriptor)

    def lost(self) -> int:
        """Return the number of entries that were lost because host memory ran out."""
        return int(self._library.journal_lost())


# --- the latest entries, followed as they happen; the journal need not be open --------------------------------


# struct journal_recent in journal.h
class _Entry(ctypes.Structure):
    _fields_ = (("address", ctypes.c_uint64), ("size", ctypes.c_int64))


class RecentBlocks:
    """Tracks the size of each live block of GPU memory by its address.

    It calls `forget` with the address of every block that is allocated or freed.
    """

    def __init__(self, forget: Callable[[int | None], None]) -> None:
        loaded = library()
        self._count = ctypes.c_uint64.in_dll(loaded, "journal_recent_count")
        self._entries = (_Entry * _RECENT).in_dll(loaded, "journal_recent")
        self._seen = self._count.value
        self._forget = forget
        self._lock = threading.RLock()  # Contents that another thread has just set must not be forgotten again.
        self._is_taking_in = False
        self._was_interrupted = False
        self.sizes: dict[int, int] = {}
        """Maps the address of each live block to its size in bytes. Blocks from before this object was created are
        missing.
        """

    def follow(self) -> None:
        """Process all allocations and frees since the last call. If the buffer has overflowed, forget all blocks."""
        if self._count.value != self._seen:
            with self._lock:
                self._take_in()

    def lose(self) -> None:
        """Skip all allocations and frees so far, and forget all blocks."""
        with self._lock:
            self._was_interrupted = self._is_taking_in
            if not self._is_taking_in:
                self._seen = self._count.value
            self.sizes.clear()
            self._forget(None)

    def _take_in(self) -> None:
        if self._is_taking_in:
            # A signal handler or a finalizer has interrupted this thread inside the loop below. The loop may still have
            # to forget addresses that the handler has written, so everything is forgotten, now and again after the
            # loop.
            self.lose()
            return
        self._is_taking_in = True
        try:
            self._take_in_all()
        finally:
            self._is_taking_in = False
        while self._was_interrupted:
            self._was_interrupted = False
            self.lose()

    def _take_in_all(self) -> None:
        count = self._count.value
        if count - self._seen > _RECENT:
            self.sizes.clear()
            self._forget(None)
        else:
            entries, sizes, forget = self._entries, self.sizes, self._forget
            for number in range(self._seen, count):
                entry = entries[number % _RECENT]
                address, size = entry.address, entry.size
                if size > 0:
                    sizes[address] = size
                else:
                    sizes.pop(address, None)
                forget(address)
        self._seen = count
