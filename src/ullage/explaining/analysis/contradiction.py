"""Checks that the trace entries of a memory snapshot do not contradict each other."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ullage.base.errors import UsageError
from ullage.base.units import MIB, text_of_bytes
from ullage.recorded.history import Action, History
from ullage.recorded.program import is_one_of
from ullage.recorded.rebuild import Rebuilt
from ullage.recorded.rebuild.life import BlockLives
from ullage.recorded.rebuild.ranges import Ranges

# The largest number of trace entries for which the check for overlapping blocks is made.
_MOST_ENTRIES: Final = 300_000
# A limit in bytes. The sizes in the trace entries of an allocation and its free may differ by at most this much. They
# can differ because one entry has the requested size and the other the size of the block.
_ROUNDING_BYTES: Final = 20 * MIB
_BLOCKS: Final = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)


def check(history: History, rebuilt: Rebuilt) -> None:
    """Raise UsageError if the trace entries of a recording contradict each other."""
    found = contradiction_of(history, rebuilt, is_exact=False)
    if found is not None:
        raise UsageError(sentence_of_contradiction(found))


def sentence_of_contradiction(contradiction: str) -> str:
    """Return the error message for a snapshot file whose trace entries contradict each other."""
    return f"the file contradicts itself: {contradiction}; nothing can be concluded from it"


def contradiction_of(history: History, rebuilt: Rebuilt, *, is_exact: bool) -> str | None:
    """Return a short description of the first contradiction in a recording, or None.

    Args:
        history: the recording of one device.
        rebuilt: its reconstruction.
        is_exact: whether a replay reproduces the recording exactly, which rules out overlapping blocks.
    """
    if not history.has_requests:
        return None
    checks = [_of_places(history, rebuilt), _of_frees(history, rebuilt.block_lives)]
    if not is_exact and len(history) <= _MOST_ENTRIES:
        checks.append(_of_blocks_over_each_other(history))
    return next((said for check in checks for said in check), None)


def _of_places(history: History, rebuilt: Rebuilt) -> Iterator[str]:
    if not history.segments:
        return
    rows, address = rebuilt.block_lives.row, rebuilt.block_lives.address  # lookups in sorted order are faster
    size = history.size[rows]
    first = rebuilt.lives.at(address, rows)
    ends = np.array([*(life.end for life in rebuilt.lives.lives), 0], np.int64)  # the last: no segment
    outside = np.flatnonzero(address + np.maximum(size, 1) > ends[first])
    for at in outside[np.argsort(rows[outside])].tolist():
        row, where = int(rows[at]), "is outside all segments" if first[at] < 0 else "extends beyond its segment"
        what = Action(int(history.action[row])).name.lower()
        yield f"the block of entry {row}, {what} of {text_of_bytes(int(size[at]))}, {where}"
    taken = np.flatnonzero(history.action == Action.SEGMENT_ALLOC)
    for row in taken[rebuilt.lives.at(history.address[taken], taken - 1) >= 0].tolist():
        yield f"the segment of entry {row} overlaps an existing segment"


def _of_frees(history: History, lives: BlockLives) -> Iterator[str]:
    frees = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    is_free = is_one_of(lives.action, frees)
    twice = (lives.action == Action.ALLOC) & (lives.previous == Action.ALLOC)
    again = is_free & (lives.previous == Action.FREE_COMPLETED)
    again |= (lives.action == Action.FREE_REQUESTED) & (lives.previous == Action.FREE_REQUESTED)
    asked, freed = history.size[lives.previous_row], history.size[lives.row]
    other = is_free & (lives.previous == Action.ALLOC)
    other &= (freed < asked) | (freed > np.maximum(2 * asked, asked + _ROUNDING_BYTES))
    for rows, what in (
        (lives.row[twice], "allocates a block that is already allocated"),
        (lives.row[again], "frees a block that is already free"),
        (lives.row[other], "frees a block with a size other than the allocated size"),
    ):
        if len(rows):
            yield f"entry {int(rows.min())} {what}"


def _of_blocks_over_each_other(history: History) -> Iterator[str]:
    alive: Ranges[int] = Ranges()
    rows = np.flatnonzero(is_one_of(history.action, _BLOCKS))
    columns = (rows, history.action[rows], history.address[rows], history.size[rows])
    for row, action, address, size in zip(*(column.tolist() for column in columns), strict=True):
        if action == Action.ALLOC:
            there = next(alive.overlapping(address, address + size), None)
            if there is not None:
                yield f"entry {row} allocates memory that the block of entry {there[2]} still occupies"
            alive.put(address, address + size, row)
        elif action == Action.FREE_COMPLETED:
            alive.cut(address, address + size)
