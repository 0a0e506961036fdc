"""The latest allocations and frees of device memory, followed as they happen; they need no journal that is open."""

import ctypes
import threading
from collections.abc import Callable
from typing import Final

from ullage.gpu.tracing.journal import library

_RECENT: Final = 1 << 16  # JOURNAL_RECENT in journal.h


class _Entry(ctypes.Structure):
    """Field for field `struct journal_recent` of journal.h."""

    _fields_ = (("address", ctypes.c_uint64), ("size", ctypes.c_int64))


class RecentBlocks:
    """The blocks that are alive, by address, with their sizes after rounding; `forget` is told each that changed."""

    def __init__(self, forget: Callable[[int | None], None]) -> None:
        loaded = library()
        self._count = ctypes.c_uint64.in_dll(loaded, "journal_recent_count")
        self._entries = (_Entry * _RECENT).in_dll(loaded, "journal_recent")
        self._seen = self._count.value
        self._forget = forget
        self._lock = threading.RLock()  # what another thread has put meanwhile is not to be forgotten again
        self._is_taking_in = False
        self._was_interrupted = False
        self.sizes: dict[int, int] = {}
        """The sizes of the blocks that were allocated since this began."""

    def follow(self) -> None:
        """Take in what happened since the last call; `forget(None)` says that some of it is lost."""
        if self._count.value != self._seen:
            with self._lock:
                self._take_in()

    def lose(self) -> None:
        """Take all that happened for lost."""
        with self._lock:
            self._was_interrupted = self._is_taking_in
            if not self._is_taking_in:
                self._seen = self._count.value
            self.sizes.clear()
            self._forget(None)

    def _take_in(self) -> None:
        if self._is_taking_in:
            # A signal's handler, or a finalizer, has interrupted this very thread within the loop below. What the loop
            # has still to forget may be what the handler has written: nothing is known then, before and after.
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
