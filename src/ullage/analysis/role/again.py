"""Blocks that were alive when a run failed, matched with those that the same code allocated one pass before.

How long a block would have lived is not known then; how long its counterpart did is.
"""

from collections.abc import Iterator

import numpy as np

from ullage.analysis.role.life import NEVER, KeyLives, Passes
from ullage.analysis.role.maker import Mask, Pass
from ullage.program import Column


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
    inside = np.isin(part[order], (Pass.BACKWARD, Pass.RECOMPUTED))
    number = np.where(
        inside,
        np.searchsorted(passes.backward_ends, born, side="left"),
        np.searchsorted(passes.backward_starts, born, side="right"),
    )
    place: dict[tuple[int, int, int], int] = {}
    found: dict[tuple[int, int, int, int], int] = {}
    latest: dict[tuple[int, int], int] = {}
    freed, wanted = lives.freed, chosen
    rows = zip(order.tolist(), number.tolist(), stack[order].tolist(), size[order].tolist(), strict=True)
    for key, turn, own_stack, own_size in rows:
        kind = own_size if own_stack >= 0 else -1
        at = place.get((turn, own_stack, kind), 0)
        place[turn, own_stack, kind] = at + 1
        if wanted[key]:
            before = found.get((turn - 1, own_stack, kind, at))
            if before is None and own_stack >= 0:
                before = latest.get((own_stack, own_size))
            if before is not None and size[before] == own_size:
                yield key, before
        if freed[key] != NEVER:
            found[turn, own_stack, kind, at] = key
            latest[own_stack, own_size] = key
