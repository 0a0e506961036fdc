"""The class `Program`, a list of allocator operations stored as arrays."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from ullage.recorded.settings import Settings

Column = npt.NDArray[np.int64]

UNMAPPED_KEY: Final = -2
"""The block ID that marks an address range without mapped memory, inside an expandable segment."""


def is_one_of(values: Column, kinds: Iterable[int]) -> npt.NDArray[np.bool_]:
    """Return, for each element of an array, whether it is one of a few values. For few values, this is faster than
    `np.isin`.
    """
    found = np.zeros(len(values), np.bool_)
    for kind in kinds:
        found |= values == int(kind)
    return found


class Op(IntEnum):
    """The kind of an allocator operation. The same table exists in C++ (allocator/_core/replay.hpp)."""

    ALLOCATE = 0
    FREE = 1
    RECORD_STREAM = 2
    EMPTY_CACHE = 3
    SET_FRACTION = 4
    SET_SETTINGS = 5
    SET_OTHERS = 6
    FAIL_NEXT = 7
    HOLD = 8
    UNHOLD = 9
    COMPLETE = 10
    SYNCHRONIZE = 11
    BEGIN_POOL = 12
    END_POOL = 13
    RELEASE_POOL = 14
    BEGIN_CAPTURE = 15
    END_CAPTURE = 16
    NOTHING = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSegment:
    """A segment that exists before the first operation, with its blocks in the order of addresses."""

    address: int
    stream: int
    is_small: bool
    is_expandable: bool
    pool: int = 0
    """The ID of the segment's private pool. 0 is the default pool."""
    blocks: tuple[tuple[int, int, int], ...]
    """The segment's blocks as (size, requested bytes, block ID). The ID is -1 for a free block."""

    @property
    def reserved_bytes(self) -> int:
        """The bytes of memory in the segment, without unmapped addresses."""
        return sum(size for size, _, key in self.blocks if key != UNMAPPED_KEY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Allocator operations in order: columns of equal length, int64.

    Which columns an operation uses: ALLOCATE key (of the block), size (bytes), stream (its handle); FREE key;
    RECORD_STREAM key, stream; SET_FRACTION size (the bits of a float64); SET_SETTINGS key (index of `settings`);
    SET_OTHERS size (bytes that other processes hold); FAIL_NEXT key (how many driver allocations fail); HOLD, UNHOLD,
    COMPLETE stream; BEGIN_POOL key (of the pool, above 0), size (index of `routes`, -1: every stream); END_POOL and
    RELEASE_POOL key. Keys of blocks count from 0 and are unique; an operation whose key is not allocated is skipped.
    """

    op: Column
    key: Column
    size: Column
    stream: Column
    routes: tuple[tuple[int, ...], ...] = ()
    settings: tuple[Settings, ...] = ()
    start: tuple[StartSegment, ...] = ()
    recorded_addresses: tuple[int, ...] = ()
    """The recorded addresses of the first cudaMalloc calls. Empty if none were recorded."""
    setup: int = 0
    """The number of operations at the beginning that only create the initial state. Peaks are measured after them."""

    def __len__(self) -> int:
        return len(self.op)

    def of_rows(self, rows: slice | Column) -> "Program":
        """Return a copy with only some of the operations, or with the operations in another order."""
        return replace(self, op=self.op[rows], key=self.key[rows], size=self.size[rows], stream=self.stream[rows])


@dataclass(slots=True)
class ProgramWriter:
    """Builds a `Program` from allocator operations that are added one by one."""

    _rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    _routes: list[tuple[int, ...]] = field(default_factory=list)
    _settings: list[Settings] = field(default_factory=list)

    def add(self, op: Op, *, key: int = 0, size: int = 0, stream: int = 0) -> None:
        """Add an allocator operation."""
        self._rows.append((op, key, size, stream))

    def begin_pool(self, key: int, streams: Sequence[int] | None) -> None:
        """From now on, allocate in a private pool on the given CUDA streams. None means all streams."""
        route = -1
        if streams is not None:
            route = len(self._routes)
            self._routes.append(tuple(streams))
        self.add(Op.BEGIN_POOL, key=key, size=route)

    def set_settings(self, settings: Settings) -> None:
        """Add an operation that changes the allocator settings."""
        self.add(Op.SET_SETTINGS, key=len(self._settings))
        self._settings.append(settings)

    def set_fraction(self, fraction: float) -> None:
        """Add an operation that limits the process to a fraction of the GPU's memory."""
        self.add(Op.SET_FRACTION, size=int(np.float64(fraction).view(np.int64)))

    def program(self) -> Program:
        """Return all added operations as a `Program`."""
        rows = np.array(self._rows, np.int64).reshape(-1, 4)
        columns = [np.ascontiguousarray(rows[:, column]) for column in range(4)]
        return Program(
            op=columns[0],
            key=columns[1],
            size=columns[2],
            stream=columns[3],
            routes=tuple(self._routes),
            settings=tuple(self._settings),
        )
