"""Reads the segments and blocks at the end of a memory snapshot, and checks them for contradictions."""

from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np

from ullage.recorded.history import Action, History, Segment, SnapshotBlock
from ullage.recorded.program import is_one_of
from ullage.recorded.snapshot._pickle import StackRow

MOST_BYTES: Final = 1 << 40
"""The largest size in bytes that is accepted in a snapshot: one tebibyte, more than any GPU has."""
MOST_ADDRESS: Final = 1 << 57
"""The highest address that a process can use."""
MOST_DEVICES: Final = 1024


def segments_of(found: Any, *, on_host: bool = False) -> dict[int, tuple[Segment, ...]]:
    """Return the segments of each device in a memory snapshot, sorted by address.

    Args:
        found: the list of segments.
        on_host: whether these are segments of pinned host memory. They have a device of -1, and the result has 0.

    Raises:
        ValueError: the segments do not have PyTorch's structure. The text says what is wrong, and where.
    """
    segments: dict[int, list[Segment]] = {}
    seen: set[int] = set()
    for entry in list_of(found, "the segments"):
        blocks = list_of(entry.get("blocks"), "the blocks of a segment")
        for part in (entry, *([blocks] if blocks else ())):
            if id(part) in seen:  # A small file could refer to a large list a million times.
                raise ValueError("it refers to the same segment or the same blocks twice")
            seen.add(id(part))
        device = 0 if on_host else int_of(entry, "device", 0)
        if not 0 <= device < MOST_DEVICES:
            raise ValueError(f"a segment is on device {device}; expected 0 to {MOST_DEVICES - 1}")
        segments.setdefault(device, []).append(_segment_of(entry, blocks))
    return {device: tuple(sorted(some, key=lambda segment: segment.address)) for device, some in segments.items()}


def list_of(value: Any, what: str) -> list[Any]:
    """Return the value if it is a list, or an empty list for None. Raise ValueError for any other value."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{what} are not a list")
    return value


def int_of(entry: Mapping[str, Any], name: str, default: int) -> int:
    """Return the value of a snapshot field if it is an integer, or else the default."""
    value = entry.get(name)
    return value if isinstance(value, int) else default


def _segment_of(entry: Mapping[str, Any], found: list[Any]) -> Segment:
    address, size = int_of(entry, "address", 0), int_of(entry, "total_size", 0)
    if not address >= 0 or not 0 <= size <= MOST_BYTES:
        raise ValueError(f"a segment of {size} bytes at {address:#x} is impossible")
    blocks, at = [], address
    for part in found:
        at = int_of(part, "address", at)  # missing in files from before 2023
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
    if stack is None:  # before 2023: the block's history, newest first
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


class Contradiction(ValueError):
    """Raised for a memory snapshot that contradicts itself."""


def check(history: History) -> None:
    """Raise Contradiction if the segments and blocks of a snapshot do not fit together."""
    found = next(chain(_of_the_state(history), _of_sizes(history)), None)
    if found is not None:
        raise Contradiction(found)


def _of_the_state(history: History) -> Iterator[str]:
    for segment in history.segments:
        if segment.size <= 0:
            yield f"the segment at {segment.address:#x} has {segment.size} bytes"
        yield from _of_blocks(segment)
    for one, other in pairwise(history.segments):
        if one.address + one.size > other.address:
            yield f"the segments at {one.address:#x} and {other.address:#x} overlap"


def _of_blocks(segment: Segment) -> Iterator[str]:
    at = segment.address
    for block in segment.blocks:
        if block.address < at:
            yield f"blocks of the segment at {segment.address:#x} overlap at {block.address:#x}"
        if block.size <= 0:
            yield f"the block at {block.address:#x} has {block.size} bytes"
        if block.state.startswith("active") and block.requested > block.size:
            yield f"the block at {block.address:#x} is smaller than the bytes that were requested for it"
        at = block.address + block.size
    total = sum(block.size for block in segment.blocks)
    if segment.blocks and (total != segment.size or at != segment.address + segment.size):
        yield (
            f"the segment at {segment.address:#x} has {segment.size:,} bytes, but its blocks have {total:,} of them"
            f"{'' if total == segment.size else ' together'}"
        )


def _of_sizes(history: History) -> Iterator[str]:
    takes = is_one_of(history.action, (Action.ALLOC, Action.SEGMENT_ALLOC, Action.SEGMENT_MAP, Action.OOM))
    for row in np.flatnonzero(takes & (history.size <= 0)).tolist():
        name = Action(int(history.action[row])).name.lower()
        yield f"entry {row}, {name}, has {history.size[row]} bytes"
