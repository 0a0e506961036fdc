"""The state at the end of a recording: segments and their blocks, in all forms since 2022."""

from collections.abc import Mapping
from typing import Any, Final

from ullage.recorded.history import Segment, SnapshotBlock
from ullage.recorded.snapshot._pickle import StackRow

MOST_BYTES: Final = 1 << 40
"""Upper bound of a size: a tebibyte, more than any card has."""
MOST_ADDRESS: Final = 1 << 57
"""The end of a process's address space."""
MOST_DEVICES: Final = 1024


def segments_of(found: Any) -> dict[int, tuple[Segment, ...]]:
    """Return the segments of each device, in order of their addresses.

    Raises:
        ValueError: they are not put together as PyTorch does it; the text says what and where.
    """
    segments: dict[int, list[Segment]] = {}
    seen: set[int] = set()
    for entry in list_of(found, "the segments"):
        blocks = list_of(entry.get("blocks"), "the blocks of a segment")
        for part in (entry, *([blocks] if blocks else ())):
            if id(part) in seen:  # a small file could name a large list a million times
                raise ValueError("it names the same segment or the same blocks twice")
            seen.add(id(part))
        device = int_of(entry, "device", 0)
        if not 0 <= device < MOST_DEVICES:
            raise ValueError(f"a segment is on device {device}; expected 0 to {MOST_DEVICES - 1}")
        segments.setdefault(device, []).append(_segment_of(entry, blocks))
    return {device: tuple(sorted(some, key=lambda segment: segment.address)) for device, some in segments.items()}


def list_of(value: Any, what: str) -> list[Any]:
    """Return a list, or an empty one for None; raise ValueError for anything else."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{what} are not a list")
    return value


def int_of(entry: Mapping[str, Any], name: str, default: int) -> int:
    """Return a field that is a whole number, or the default where it is none."""
    value = entry.get(name)
    return value if isinstance(value, int) else default


def _segment_of(entry: Mapping[str, Any], found: list[Any]) -> Segment:
    address, size = int_of(entry, "address", 0), int_of(entry, "total_size", 0)
    if not address >= 0 or not 0 <= size <= MOST_BYTES:
        raise ValueError(f"a segment of {size} bytes at {address:#x} is impossible")
    blocks, at = [], address
    for part in found:
        at = int_of(part, "address", at)  # not in files before 2023
        blocks.append(_block_of(part, at))
        at += blocks[-1].size
    pool = entry.get("segment_pool_id")
    first, second = (pool[0], pool[1]) if isinstance(pool, list) and len(pool) == 2 else (0, 0)
    return Segment(
        address=address,
        size=size,
        stream=int_of(entry, "stream", 0),
        is_large=entry.get("segment_type") != "small",
        is_expandable=bool(entry.get("is_expandable", False)),
        pool=next((part for part in (first, second) if isinstance(part, int) and part), 0),
        blocks=tuple(blocks),
    )


def _block_of(part: Mapping[str, Any], address: int) -> SnapshotBlock:
    size, stack = int_of(part, "size", 0), part.get("frames")
    if not address >= 0 or not 0 <= size <= MOST_BYTES:
        raise ValueError(f"a block of {size} bytes at {address:#x} is impossible")
    requested = size
    if stack is None:  # until 2023: the block's history, newest first
        history = list_of(part.get("history"), "the history of a block")
        if history:
            stack = history[0].get("frames")
            requested = int_of(history[0], "real_size", size)
    state = part.get("state")
    requested = int_of(part, "requested_size", requested)
    return SnapshotBlock(
        address=address,
        size=size,
        requested=requested if 0 <= requested <= MOST_BYTES else size,
        state=state if isinstance(state, str) else "inactive",
        stack=stack.row if isinstance(stack, StackRow) else -1,
    )
