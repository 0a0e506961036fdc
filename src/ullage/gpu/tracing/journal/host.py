"""Read the large allocations of host memory: their peak, and the source lines that requested them.

The C part (`host.c`) counts three kinds:

* pinned memory that the emulated CUDA runtime allocates;
* CPU tensors of 1 MiB or more, as PyTorch's allocator requests them (`c10::alloc_cpu`, torch 2.6 to 2.15);
* NumPy arrays of 1 MiB or more, through NumPy's table of memory functions (NEP 49).
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

_GET_HANDLER: Final = 305  # the index of PyDataMem_GetHandler in NumPy's C function table, since 1.22
_HANDLER_NAME: Final = b"mem_handler"
_ALLOCATOR_OFFSET: Final = 128  # in PyDataMem_Handler, after its name and version
_KNOWN_HANDLER: Final = b"default_allocator"
_STATUS: Final = Path("/proc/self/status")
_FIELDS: Final = {"VmHWM": "peak_bytes", "VmRSS": "bytes", "RssFile": "file_bytes"}


class HostKind(IntEnum):
    """The kind of a host memory allocation. The values are those of `enum host_kind` in host.h."""

    PINNED = 0
    TENSORS = 1
    ARRAYS = 2


# struct host_use in host.h
class _HostUseStruct(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_int64), ("blocks", ctypes.c_uint32), ("stack", ctypes.c_uint32))


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """The host memory that a source line held at the peak."""

    line: Line | None
    """The user's source line that allocated the memory.

    Without a user line on the stack, it is the innermost library line. None: the stack has no Python frames.
    """
    is_users: bool
    bytes: int
    blocks: int


class HostLedger:
    """Counts large allocations of host memory. It must be created before torch is imported."""

    def __init__(self, library: ctypes.CDLL, stacks: JournalStacks) -> None:
        for name in ("host_bytes", "host_peak_bytes", "host_own_bytes"):
            getattr(library, name).restype = ctypes.c_int64
        library.host_use_at_peak.restype = ctypes.c_bool
        library.host_use_at_peak.argtypes = [ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_HostUseStruct)]
        self._library, self._stacks = library, stacks

    def open(self) -> None:
        """Start to count large allocations of host memory."""
        allocator = _numpy_allocator()
        if allocator is not None:
            self._library.host_watch_arrays(allocator)
        self._library.host_open()

    def close(self) -> None:
        """Stop counting. The counts stay readable."""
        self._library.host_close()

    def bytes(self, kind: HostKind) -> int:
        """Return the bytes of one kind of host memory that are allocated now."""
        return int(self._library.host_bytes(int(kind)))

    def peak_bytes(self, kind: HostKind) -> int:
        """Return the peak of one kind of host memory in bytes."""
        return int(self._library.host_peak_bytes(int(kind)))

    def own_bytes(self) -> int:
        """Return the bytes of host memory that ullage uses to count the script's host allocations."""
        return int(self._library.host_own_bytes())

    def rows_at_peak(self, kind: HostKind) -> list[LedgerRow]:
        """Return the host memory that each source line held at the peak, largest first."""
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
    """The resident memory of a process in bytes, including shared pages."""

    bytes: int
    peak_bytes: int
    """The largest resident memory since the process began, in bytes."""
    file_bytes: int
    """The resident bytes of mapped files, such as libraries. Processes share these pages."""


def resident(status: Path = _STATUS) -> Resident:
    """Return the resident memory of this process. All numbers are 0 if the kernel does not report them."""
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
