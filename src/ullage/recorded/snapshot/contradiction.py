"""What cannot be true of the state at the end of a recording, or of one entry: no allocator does it."""

from collections.abc import Iterator
from itertools import chain, pairwise

import numpy as np

from ullage.recorded.history import Action, History, Segment
from ullage.recorded.program import is_one_of


class Contradiction(ValueError):
    """Report a file of which not all can be true."""


def check(history: History) -> None:
    """Raise Contradiction where segments and their blocks do not fit together, or an entry is of nothing."""
    found = next(chain(_of_the_state(history), _of_sizes(history)), None)
    if found is not None:
        raise Contradiction(found)


def _of_the_state(history: History) -> Iterator[str]:
    """Yield what is wrong with the segments at the end, which their blocks have to fill from end to end."""
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
            yield f"the block at {block.address:#x} is smaller than what was asked for in it"
        at = block.address + block.size
    total = sum(block.size for block in segment.blocks)
    if segment.blocks and (total != segment.size or at != segment.address + segment.size):
        yield (
            f"the segment at {segment.address:#x} has {segment.size:,} bytes, and its blocks have {total:,} of them"
            f"{'' if total == segment.size else ' together'}"
        )


def _of_sizes(history: History) -> Iterator[str]:
    """Yield entries of nothing: no allocator gives 0 bytes out, nor fails to."""
    takes = is_one_of(history.action, (Action.ALLOC, Action.SEGMENT_ALLOC, Action.SEGMENT_MAP, Action.OOM))
    for row in np.flatnonzero(takes & (history.size <= 0)).tolist():
        yield f"entry {row}, {_name(history, row)}, is of {history.size[row]} bytes"


def _name(history: History, row: int) -> str:
    return Action(int(history.action[row])).name.lower()
