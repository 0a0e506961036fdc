"""The class `Program`, a list of allocator operations, stored as columns. The results of the operations are in a
`Replay`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from ullage.recorded.settings import Settings

Column = npt.NDArray[np.int64]

UNMAPPED_KEY: Final = -2
"""The key for an address range of an expandable segment that has no memory (allocator/_core/replay.hpp)."""


def is_one_of(values: Column, kinds: Iterable[int]) -> npt.NDArray[np.bool_]:
    """Return, for each element of an array, whether it is one of a few values. This is ten times as fast as `np.isin`
    if the values are so few.
    """
    found = np.zeros(len(values), np.bool_)
    for kind in kinds:
        found |= values == int(kind)
    return found


class Op(IntEnum):
    """The kind of an allocator operation. The C++ code of ullage's allocator model has the same table
    (allocator/_core/replay.hpp).
    """

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
    """A segment that exists before the first operation of a `Program`. It has all of its blocks in the order of
    addresses.
    """

    address: int
    stream: int
    is_small: bool
    is_expandable: bool
    pool: int = 0
    """The key of the segment's private pool; 0 is the default pool."""
    blocks: tuple[tuple[int, int, int], ...]
    """The segment's blocks as (bytes after rounding, requested bytes, key of the block). The key is -1 for a free
    block, and `UNMAPPED_KEY` for addresses without memory.
    """

    @property
    def reserved_bytes(self) -> int:
        """The bytes of memory in the segment. Addresses without memory do not count."""
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
    """The addresses that the first cudaMalloc calls of a replay return. It is empty if no addresses were recorded."""
    setup: int = 0
    """The number of operations at the beginning of a `Program` that only create the initial state. Peaks are measured
    after them.
    """

    def __len__(self) -> int:
        return len(self.op)

    def of_rows(self, rows: slice | Column) -> "Program":
        """Return a `Program` with only some of the operations, or with all operations in another order."""
        return replace(self, op=self.op[rows], key=self.key[rows], size=self.size[rows], stream=self.stream[rows])


@dataclass(slots=True)
class ProgramWriter:
    """Builds a `Program` from allocator operations, which are added one after another."""

    _rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    _routes: list[tuple[int, ...]] = field(default_factory=list)
    _settings: list[Settings] = field(default_factory=list)

    def add(self, op: Op, *, key: int = 0, size: int = 0, stream: int = 0) -> None:
        """Add an allocator operation."""
        self._rows.append((op, key, size, stream))

    def begin_pool(self, key: int, streams: Sequence[int] | None) -> None:
        """Add an operation that starts to route allocations to a private pool. `streams` says which streams'
        allocations are routed; None means all streams.
        """
        route = -1
        if streams is not None:
            route = len(self._routes)
            self._routes.append(tuple(streams))
        self.add(Op.BEGIN_POOL, key=key, size=route)

    def set_settings(self, settings: Settings) -> None:
        """Add an operation that changes the settings of the allocator."""
        self.add(Op.SET_SETTINGS, key=len(self._settings))
        self._settings.append(settings)

    def set_fraction(self, fraction: float) -> None:
        """Add an operation that limits the process to a fraction of the GPU's memory.
        torch.cuda.set_per_process_memory_fraction does the same.
        """
        self.add(Op.SET_FRACTION, size=int(np.float64(fraction).view(np.int64)))

    def program(self) -> Program:
        """Return the allocator operations collected so far as a `Program`."""
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
