"""Blocks that were alive when a run failed, matched with those that the same code allocated one pass before.

How long a block would have lived is not known then; how long its counterpart did is.
"""

from collections.abc import Iterator

import numpy as np

from ullage.explaining.analysis.role.life import NEVER, KeyLives, Passes
from ullage.explaining.analysis.role.maker import Mask, Pass
from ullage.recorded.program import Column, is_one_of


def counterparts(
    chosen: Mask, *, lives: KeyLives, passes: Passes, part: Column, stack: Column, size: Column, stays: Mask
) -> Iterator[tuple[int, int]]:
    """Yield blocks and the counterpart of each, which was freed: (key, key).

    Args:
        chosen: the blocks to find a counterpart for.
        lives: when blocks were allocated and freed.
        passes: the passes of steps.
        part: the `Pass` of each block.
        stack: the stack of each block; -1: none was recorded.
        size: the size of each block.
        stays: blocks that libraries take once, so that a later pass does not allocate them again.
    """
    order = lives.order[~stays[lives.order]]
    order = order[np.isin(stack[order], np.unique(stack[order[chosen[order]]]))]  # all others are no counterparts
    born = lives.born[order]
    # What comes from one stack is counted within its pass; what has no stack, within backward as a whole.
    inside = is_one_of(part[order], (Pass.BACKWARD, Pass.RECOMPUTED))
    number = np.where(
        inside,
        np.searchsorted(passes.backward_ends, born, side="left"),
        np.searchsorted(passes.backward_starts, born, side="right"),
    )
    turns = np.unique(number[chosen[order]])
    is_near = np.isin(number, np.append(turns, turns - 1))  # all others are in no pass that is compared
    missed: list[int] = []
    place: dict[tuple[int, int, int], int] = {}
    found: dict[tuple[int, int, int, int], int] = {}
    near = order[is_near]
    columns = (near, number[is_near], stack[near], size[near], chosen[near], lives.freed[near] != NEVER)
    for key, turn, own_stack, own_size, is_wanted, is_freed in zip(*(each.tolist() for each in columns), strict=True):
        kind = own_size if own_stack >= 0 else -1
        at = place.get((turn, own_stack, kind), 0)
        place[turn, own_stack, kind] = at + 1
        if is_wanted:
            before = found.get((turn - 1, own_stack, kind, at))
            if before is not None and size[before] == own_size:
                yield key, before
            elif before is None and own_stack >= 0:
                missed.append(key)
        if is_freed:
            found[turn, own_stack, kind, at] = key
    yield from _latest(missed, order, lives=lives, stack=stack, size=size)


def _latest(
    missed: list[int], order: Column, *, lives: KeyLives, stack: Column, size: Column
) -> Iterator[tuple[int, int]]:
    """Yield blocks with the last one before each that was freed, of the same stack and size."""
    mine = np.array(missed, np.int64)
    may_count = np.isin(stack[order], np.unique(stack[mine])) & np.isin(size[order], np.unique(size[mine]))
    is_wanted = np.zeros(len(size), np.bool_)
    is_wanted[mine] = True
    chosen = order[may_count & (is_wanted[order] | (lives.freed[order] != NEVER))]
    latest: dict[tuple[int, int], int] = {}
    columns = (chosen, stack[chosen], size[chosen], is_wanted[chosen], lives.freed[chosen] != NEVER)
    for key, own_stack, own_size, wanted, is_freed in zip(*(each.tolist() for each in columns), strict=True):
        before = latest.get((own_stack, own_size)) if wanted else None
        if before is not None:
            yield key, before
        if is_freed:
            latest[own_stack, own_size] = key
