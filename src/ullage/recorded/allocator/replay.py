"""Simulates PyTorch's memory allocator. The simulated sizes and totals equal PyTorch's to the byte."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Self

from ullage.base.errors import UsageError, quoted
from ullage.recorded.allocator._allocator import replay as _run
from ullage.recorded.allocator._allocator import survey as _survey
from ullage.recorded.allocator.placement import PLACEMENTS, placement_of
from ullage.recorded.program import Column, Program
from ullage.recorded.rebuild import Rebuilt
from ullage.recorded.settings import ALLOCATORS, SMALL_SEGMENT_BYTES, Settings

_MOST_KEYS: Final = 1 << 31
_FAULTS: Final = {
    1: "a program has an operation that is not in the table of ullage.recorded.program.Op",
    2: "a program has a block with a key that is negative or above 2^31; expected keys that count from 0",
    3: "a program refers to settings or a route that it does not have",
}


class Call(IntEnum):
    """The kind of a driver call."""

    MALLOC = 0
    MALLOC_FAILED = 1
    FREE = 2
    RESERVE = 3
    UNRESERVE = 4
    MAP = 5
    UNMAP = 6
    CREATE_FAILED = 7


class State(IntEnum):
    """The state of a memory block in the allocator."""

    FREE = 0
    WAITING = 1
    """A freed block that another CUDA stream may still use."""
    ALLOCATED = 2
    UNMAPPED = 3
    """Addresses of an expandable segment that have no memory mapped to them."""


class ImpossibleStartError(UsageError):
    """Raised if the initial segments overlap or have impossible addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDevice:
    """The simulated GPU: its memory size, the bytes that other processes use, and how the driver chooses addresses."""

    total_bytes: int
    others_bytes: int = 0
    placement: str | None = None
    """The rule by which the driver chooses segment addresses, a key of `PLACEMENTS`. None means that it is inferred."""

    @classmethod
    def of(cls, rebuilt: Rebuilt) -> Self:
        """Return a simulated GPU for a recorded run.

        The GPU's total memory is the memory that the allocator could reserve, plus the memory that it could not
        reserve.
        """
        return cls(total_bytes=rebuilt.room_bytes + rebuilt.beyond_room_bytes, others_bytes=rebuilt.beyond_room_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLevels:
    """The allocator's byte counts at one time, as in torch.cuda.memory_stats()."""

    allocated_bytes: int
    reserved_bytes: int
    active_bytes: int
    inactive_split_bytes: int
    requested_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelColumns:
    """The allocator's byte counts after each operation, as arrays."""

    allocated_bytes: Column
    reserved_bytes: Column
    active_bytes: Column
    inactive_split_bytes: Column
    requested_bytes: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The address and size of each allocated block. Both are -1 for failed allocations and for other operations."""

    address: Column
    segment: Column
    """The index of the cudaMalloc call that created the segment. It is -1 - n for the n-th address range of expandable
    segments.
    """
    offset: Column
    size_bytes: Column
    """The size of the block in bytes, after PyTorch's rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The simulated driver calls in order, as arrays. Unused fields of a call are 0."""

    op: Column
    call: Column
    number: Column
    size: Column
    """The size in bytes. Calls that map or unmap memory have the size of one page."""
    offset: Column
    count: Column
    """The number of pages that a driver call maps, unmaps or creates."""
    address: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockColumns:
    """All memory blocks at the end of a simulation, as arrays in the order of addresses."""

    address: Column
    size: Column
    requested: Column
    state: Column
    stream: Column
    key: Column
    """The ID of the block in the simulated operations, or -1 for a free block."""
    segment: Column
    """The index of the block's segment in the arrays whose names begin with `segment_`."""
    pool: Column
    """The ID of the private pool that contains the block. 0 is the default pool."""
    is_small: Column
    segment_address: Column
    segment_size: Column
    segment_is_expandable: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of a simulation: the results of all allocator operations, and the allocator's final state."""

    done: int
    """The number of operations that were simulated."""
    now: MemoryLevels
    peak: MemoryLevels
    peak_allocated_op: int
    peak_reserved_op: int
    oom_ops: Column
    rejected_ops: Column
    """The indices of the allocations that the option `throw_on_cudamalloc_oom` rejected."""
    skipped_ops: Column
    retries: int
    """The number of times that the allocator freed its cache to satisfy an allocation (`num_alloc_retries` in
    PyTorch).
    """
    synchronizations: int
    address_ties: int
    """The number of choices between free blocks of equal size for which the blocks' addresses were not recorded.

    The number is 0 for torch 2.12 and later.
    """
    call_counts: dict[Call, int]
    broken: str
    """The text of the failed PyTorch assertion that ended the simulation. Empty if none failed."""
    blocks: BlockColumns
    levels: LevelColumns | None
    places: Places | None
    calls: Calls | None

    @property
    def ran_out(self) -> bool:
        """Whether any allocation failed."""
        return bool(len(self.oom_ops) or len(self.rejected_ops))

    @property
    def driver_calls(self) -> int:
        """The number of slow driver calls: cudaMalloc, cudaFree, and the mapping or unmapping of pages."""
        slow = (Call.MALLOC, Call.MALLOC_FAILED, Call.FREE, Call.MAP, Call.UNMAP, Call.CREATE_FAILED)
        return sum(self.call_counts[call] for call in slow)


def replay(
    program: Program,
    settings: Settings,
    device: ReplayDevice,
    *,
    levels: bool = False,
    places: bool = False,
    calls: bool = False,
    stop_after_ooms: int = 0,
) -> Replay:
    """Simulate a list of allocator operations with the given settings and GPU.

    It follows PyTorch's DeviceCachingAllocator in the version that `settings.semantics` names. It releases the GIL, so
    several simulations can run in parallel threads.

    Args:
        program: the operations.
        settings: the allocator settings at the start.
        device: the GPU.
        levels: record the bytes after every operation.
        places: record the place of each block.
        calls: record every driver call.
        stop_after_ooms: end at the n-th request that fails; 0: continue, like a program that handles the error.

    Raises:
        UsageError: the program, the settings or the device are invalid.
    """
    ids = _check(program, device)
    allocator = ALLOCATORS[settings.semantics]
    found = _run(
        program.op,
        program.key,
        program.size,
        program.stream,
        ids,
        [list(route) for route in program.routes],
        [_fields(each, device) for each in (settings, *program.settings)],
        device.total_bytes,
        device.others_bytes,
        list(PLACEMENTS).index(device.placement or placement_of(program)),
        int(allocator.tie),
        allocator.routes_capture,
        settings.per_process_memory_fraction,
        levels,
        places,
        calls,
        stop_after_ooms,
        _start_of(program),
        list(program.recorded_addresses),
        program.setup,
    )
    return _replay_of(found, levels=levels, places=places, calls=calls)


def _check(program: Program, device: ReplayDevice) -> int:
    if device.placement is not None and device.placement not in PLACEMENTS:
        raise UsageError(f"{quoted(device.placement)} is not a placement; expected one of {', '.join(PLACEMENTS)}")
    if not device.others_bytes >= 0 or not 0 < device.total_bytes < 1 << 62:
        raise UsageError(
            f"a GPU of {device.total_bytes} bytes with {device.others_bytes} used by other processes is impossible"
        )
    if not len(program.op) == len(program.key) == len(program.size) == len(program.stream):
        raise UsageError(
            "the columns of a program have different lengths; expected one entry per operation in each column"
        )
    keys = _survey(program.op, program.key, program.size, len(program.settings), len(program.routes))
    if keys < 0:
        raise UsageError(_FAULTS[~keys])
    return max(keys, _check_start(program))


def _check_start(program: Program) -> int:
    end, last = 0, -1
    for segment in sorted(program.start, key=lambda segment: segment.address):
        sizes, begin = [block[0] for block in segment.blocks], segment.address
        stop = begin + sum(sizes)
        if not sizes or min(sizes) <= 0 or (segment.is_expandable and (stop - begin) % SMALL_SEGMENT_BYTES):
            fault = "has blocks that do not add up to whole pages; expected blocks above 0 bytes"
        elif not end <= begin < (1 << 62) - (stop - begin):
            fault = "overlaps another segment, or has impossible addresses"
        else:
            end = stop
            last = max(last, max([block[-1] for block in segment.blocks]))
            continue
        raise ImpossibleStartError(f"the segment at {begin:#x} that exists when the program begins {fault}")
    if last >= _MOST_KEYS:
        raise UsageError(_FAULTS[2])
    return last + 1


def _start_of(program: Program) -> list[list[int]]:
    segments = program.start
    blocks = [block for segment in segments for block in segment.blocks]
    return [
        [segment.address for segment in segments],
        [segment.stream for segment in segments],
        [int(segment.is_small) for segment in segments],
        [int(segment.is_expandable) for segment in segments],
        [segment.pool for segment in segments],
        [len(segment.blocks) for segment in segments],
        *([block[field] for block in blocks] for field in range(3)),
    ]


def _fields(settings: Settings, device: ReplayDevice) -> tuple[Any, ...]:
    return (
        settings.max_split_bytes,
        settings.max_non_split_rounding_bytes,
        settings.large_segment_bytes,
        settings.garbage_collection_threshold,
        list(settings.roundup_divisions),
        settings.expandable_segments,
        settings.throw_on_cudamalloc_oom,
        settings.reserve_bytes(device.total_bytes),
    )


# The fields of `Replay` that have the same name in the C++ code of ullage's allocator model.
_PLAIN: Final = (
    *("done", "peak_allocated_op", "peak_reserved_op", "oom_ops", "rejected_ops", "skipped_ops"),
    *("retries", "synchronizations", "address_ties", "broken"),
)


def _replay_of(found: dict[str, Any], *, levels: bool, places: bool, calls: bool) -> Replay:
    def columns(names: Any, prefix: str = "") -> dict[str, Column]:
        return {name: found[prefix + name] for name in names}

    block_names = ("address", "size", "requested", "state", "stream", "key", "segment", "pool", "is_small")
    segment_names = ("segment_address", "segment_size", "segment_is_expandable")
    rows = found["calls"].reshape(-1, 7).T
    return Replay(
        **{name: found[name] for name in _PLAIN},
        now=MemoryLevels(**found["now"]),
        peak=MemoryLevels(**found["peak"]),
        call_counts={call: int(found["call_counts"][call]) for call in Call},
        blocks=BlockColumns(**columns(block_names, "block_"), **columns(segment_names)),
        levels=LevelColumns(**columns(LevelColumns.__slots__)) if levels else None,
        places=Places(**columns(Places.__slots__)) if places else None,
        calls=Calls(**dict(zip(Calls.__slots__, rows, strict=True))) if calls else None,
    )
