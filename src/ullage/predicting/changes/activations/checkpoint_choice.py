"""Which blocks to checkpoint so that enough is saved at the least computation: a pure function.

Blocks run in their order, and the backward pass goes back from the last one. A block that is checkpointed keeps its
input alone until the backward pass comes to it, and then, once more, all that it saves: beside what the blocks before
it have kept. So an early block saves as much as a late one of the same size, and costs less at that moment.
"""

from collections.abc import Sequence
from typing import Final

_MOST_STATES: Final = 4096
"""The number of selections that are kept side by side; beyond it the choice is the best of these, which may not be
the best of all."""
_STEPS: Final = 64
"""The number of needs, from little to all that can be saved, for which a selection is offered."""
_State = tuple[int, int, tuple[int, ...]]
"""The operations, the bytes saved, and the blocks that are chosen."""


def choose_blocks(saved_bytes: Sequence[int], flops: Sequence[int], needed_bytes: int) -> tuple[int, ...]:
    """Return the numbers of the blocks to checkpoint, ascending; all that save something where nothing is enough.

    Args:
        saved_bytes: what each block keeps for the backward pass beside its input and output, in the order in which
            the blocks run.
        flops: the floating-point operations of each block's forward pass, which would run once more.
        needed_bytes: what has to be saved of the peak.
    """
    if needed_bytes <= 0:
        return ()
    limit = sum(saved_bytes) - needed_bytes
    states: list[_State] = [(0, 0, ())]
    before = 0
    for number, (size, cost) in enumerate(zip(saved_bytes, flops, strict=True)):
        chosen = [
            (operations + cost, saved + size, (*blocks, number))
            for operations, saved, blocks in states
            if size > 0 and before - saved + size <= limit
        ]
        states = _best(states + chosen)
        before += size
    enough = [state for state in states if state[1] >= needed_bytes]
    if not enough:
        return tuple(number for number, size in enumerate(saved_bytes) if size > 0)
    return min(enough, key=lambda state: (state[0], state[2]))[2]


def choices(saved_bytes: Sequence[int], flops: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the selections that are worth a run, each with what it saves at the least computation, the least first."""
    total = sum(size for size in saved_bytes if size > 0)
    if len(set(zip(saved_bytes, flops, strict=True))) == 1:
        return [tuple(range(count)) for count in range(1, len(saved_bytes) + 1)]
    found = (choose_blocks(saved_bytes, flops, max(1, total * step // _STEPS)) for step in range(1, _STEPS + 1))
    return [each for each in dict.fromkeys(found) if each]


def _best(states: Sequence[_State]) -> list[_State]:
    """Return the selections of which none saves at least as much for no more operations, early blocks first."""
    found: list[_State] = []
    for state in sorted(states, key=lambda each: (each[0], -each[1], each[2])):
        if not found or state[1] > found[-1][1]:
            found.append(state)
    if len(found) <= _MOST_STATES:
        return found
    step = len(found) / _MOST_STATES
    return [found[int(number * step)] for number in range(_MOST_STATES)] + [found[-1]]
