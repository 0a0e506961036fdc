"""The host's large pieces of memory, read from Python: how much at most, and which lines had asked for it.

The C side (`host.c`) counts pinned memory, as the emulated runtime hands it out; tensors on the CPU of 1 MiB and more,
as PyTorch's allocator takes them (`c10::alloc_cpu`, torch 2.6 to 2.15); and NumPy's arrays of that size, by the table
of functions that NumPy asks for memory (NEP 49).
"""

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from ullage.base.units import KIB
from ullage.gpu.tracing.journal.stacks import JournalStacks
from ullage.gpu.tracing.source import Line

_GET_HANDLER: Final = 305  # the place of PyDataMem_GetHandler in NumPy's table of C functions, since 1.22
_HANDLER_NAME: Final = b"mem_handler"
_ALLOCATOR_OFFSET: Final = 128  # in PyDataMem_Handler: after its name and its version
_KNOWN_HANDLER: Final = b"default_allocator"
_STATUS: Final = Path("/proc/self/status")
_FIELDS: Final = {"VmHWM": "peak_bytes", "VmRSS": "bytes", "RssFile": "file_bytes"}


class HostKind(IntEnum):
    """What memory of the host is counted; `enum host_kind` of host.h."""

    PINNED = 0
    TENSORS = 1
    ARRAYS = 2


class _HostUseStruct(ctypes.Structure):
    """Field for field `struct host_use` of host.h."""

    _fields_ = (("bytes", ctypes.c_int64), ("blocks", ctypes.c_uint32), ("stack", ctypes.c_uint32))


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """What one line had at the peak."""

    line: Line | None
    """The user's line, or the innermost of a library where none of the user's led there; None: no Python line."""
    is_users: bool
    bytes: int
    blocks: int


class HostLedger:
    """The one count of this process. Load it, as the journal's library, before torch is imported."""

    def __init__(self, library: ctypes.CDLL, stacks: JournalStacks) -> None:
        for name in ("host_bytes", "host_peak_bytes", "host_own_bytes"):
            getattr(library, name).restype = ctypes.c_int64
        library.host_use_at_peak.restype = ctypes.c_bool
        library.host_use_at_peak.argtypes = [ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_HostUseStruct)]
        self._library, self._stacks = library, stacks

    def open(self) -> None:
        """Begin to count."""
        allocator = _numpy_allocator()
        if allocator is not None:
            self._library.host_watch_arrays(allocator)
        self._library.host_open()

    def close(self) -> None:
        """Count no longer; what was counted stays readable."""
        self._library.host_close()

    def bytes(self, kind: HostKind) -> int:
        """Return how many bytes there are now."""
        return int(self._library.host_bytes(int(kind)))

    def peak_bytes(self, kind: HostKind) -> int:
        """Return how many bytes there were at most at once."""
        return int(self._library.host_peak_bytes(int(kind)))

    def own_bytes(self) -> int:
        """Return what counting itself takes."""
        return int(self._library.host_own_bytes())

    def rows_at_peak(self, kind: HostKind) -> list[LedgerRow]:
        """Return what was there at the peak by line, most first; the bytes sum to the peak's."""
        sums: dict[tuple[Line | None, bool], tuple[int, int]] = {}
        use, index = _HostUseStruct(), 0
        while self._library.host_use_at_peak(int(kind), index, use):
            index += 1
            if use.blocks:
                place = self._place(use.stack)
                size, blocks = sums.get(place, (0, 0))
                sums[place] = size + use.bytes, blocks + use.blocks
        rows = [
            LedgerRow(line=line, is_users=users, bytes=size, blocks=blocks)
            for (line, users), (size, blocks) in sums.items()
        ]
        return sorted(rows, key=lambda row: -row.bytes)

    def _place(self, node: int) -> tuple[Line | None, bool]:
        line = self._stacks.users_line(node)
        if line is not None:
            return line, True
        return next(iter(self._stacks.stack(node)), None), False


def _numpy_allocator() -> ctypes.c_void_p | None:
    """Return the address of the table of functions that NumPy asks for memory; None: it is not as we know it."""
    try:
        core: Any = import_module("numpy._core._multiarray_umath")
    except ImportError:  # NumPy 1
        return None
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    functions = ctypes.cast(get_pointer(core._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    handler: Any = ctypes.PYFUNCTYPE(ctypes.py_object)(functions[_GET_HANDLER])()
    address = get_pointer(handler, _HANDLER_NAME)
    if ctypes.string_at(address) != _KNOWN_HANDLER or ctypes.string_at(address, _ALLOCATOR_OFFSET)[-1:] != b"\1":
        return None
    return ctypes.c_void_p(address + _ALLOCATOR_OFFSET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """What of a process's memory is in the machine's: its pages, whoever else has them too."""

    bytes: int
    peak_bytes: int
    """The most since the process began."""
    file_bytes: int
    """Pages of files, such as the code of libraries, which every process that maps them shares."""


def resident(status: Path = _STATUS) -> Resident:
    """Read what this process has now; zeros where the kernel does not tell."""
    found = dict.fromkeys(_FIELDS.values(), 0)
    try:
        lines = status.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name in _FIELDS:
            found[_FIELDS[name]] = int(value.split()[0]) * KIB
    return Resident(**found)
