"""Shows which source lines, CUDA streams and private pools hold memory when an allocation fails, or at the memory
peak.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage.explaining.analysis.recording import HeldBlock, Recording
from ullage.explaining.analysis.role import Sureness
from ullage.explaining.analysis.role.forward_line import forward_stacks_of
from ullage.recorded.allocator.replay import State
from ullage.recorded.frame import short_line, users_frame

_OF_BACKWARD: Final[Mapping[Sureness, str]] = {
    Sureness.CERTAIN: "its backward",
    Sureness.LIKELY: "its backward",
    Sureness.GUESS: "its backward, a guess",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LineHolder:
    """A source line and the memory that it held when the allocation failed, or at the memory peak. Sizes are in
    bytes.
    """

    line: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMemory:
    """The memory of one CUDA stream in one pool when the allocation failed, or at the memory peak. Sizes are in
    bytes.
    """

    stream: int
    """The recorded handle of the CUDA stream. 0 is the default stream."""
    pool: int
    """The ID of the private pool. 0 is the default pool."""
    reserved_bytes: int
    allocated_bytes: int
    pending_bytes: int
    """The bytes that were freed on this stream but may still be used by other streams."""


def holders_of(recording: Recording) -> tuple[LineHolder, ...]:
    """Return the source lines that held memory when the allocation failed, or at the memory peak. The largest comes
    first.
    """
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    held = recording.held()
    forward = _backward_lines(recording, held)
    for block in held:
        line = forward.get(block.key, block.line)
        sizes[line] += block.size_bytes
        counts[line] += 1
    return tuple(LineHolder(line=line, bytes=size, blocks=counts[line]) for line, size in sizes.most_common())


def _backward_lines(recording: Recording, held: Sequence[HeldBlock]) -> dict[int, str]:
    lineless = (block.key for block in held if block.key >= 0 and block.line.startswith("("))
    frames_of = recording.history.stacks.frames_of
    found = {}
    for key, (stack, sureness) in forward_stacks_of(recording, lineless).items():
        frame = users_frame(frames_of(stack))
        if frame is not None:
            found[key] = f"{short_line(frame)} ({_OF_BACKWARD[sureness]})"
    return found


def memory_by_stream(recording: Recording) -> tuple[StreamMemory, ...]:
    """Return the memory of each stream and pool when the allocation failed, or at the memory peak. The largest comes
    first.
    """
    blocks = recording.moment.blocks
    state = np.where(np.isin(blocks.key, list(recording.held_back)), State.WAITING, blocks.state)
    sizes: dict[tuple[int, int], Counter[State]] = {}
    columns = (blocks.stream, blocks.pool, state, blocks.size)
    for stream, pool, what, size in zip(*(column.tolist() for column in columns), strict=True):
        sizes.setdefault((stream, pool), Counter())[State(what)] += size
    found = (
        StreamMemory(
            stream=stream,
            pool=pool,
            reserved_bytes=sum(size for what, size in held.items() if what != State.UNMAPPED),
            allocated_bytes=held[State.ALLOCATED],
            pending_bytes=held[State.WAITING],
        )
        for (stream, pool), held in sizes.items()
    )
    return tuple(sorted(found, key=lambda memory: (-memory.reserved_bytes, memory.stream, memory.pool)))
