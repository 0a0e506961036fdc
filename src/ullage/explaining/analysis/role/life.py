"""The lives of a program's blocks, and the passes of a training step between them."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage.explaining.analysis.role.maker import Mask, Pass
from ullage.recorded.program import Column, Op, Program, is_one_of

NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLives:
    """When each block was allocated and freed: operations, by the program's key."""

    born: Column
    """-1: before recording began, or not at all."""
    freed: Column
    """`NEVER` where it was not."""
    order: Column
    """The keys that operations allocate, in their order."""

    @classmethod
    def of(cls, program: Program, keys: int) -> "KeyLives":
        """Read the program."""
        born, freed = np.full(keys, -1, np.int64), np.full(keys, NEVER, np.int64)
        # What brings about the state at the beginning was there before.
        made = np.flatnonzero(program.op == Op.ALLOCATE)
        made = made[made >= program.setup]
        ended = np.flatnonzero(program.op == Op.FREE)
        born[program.key[made]] = made
        freed[program.key[ended]] = ended
        return cls(born=born, freed=freed, order=program.key[made])


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """When passes began and ended: operations, each column ascending."""

    forward_starts: Column
    backward_starts: Column
    backward_ends: Column
    """The last allocation of each backward pass."""
    after_backward: Column
    """The first allocation after each backward pass; `NEVER` where none follows."""
    has_modules: bool
    """Whether any forward pass was seen."""


def passes_of(lives: KeyLives, part: Column, begins: Mask) -> Passes:
    """Find the passes in the order of allocations.

    Args:
        lives: the blocks' lives.
        part: the `Pass` of each block, by key.
        begins: whether a block is the first gradient of a backward pass, by key.
    """
    order = lives.order
    kinds, at = part[order], lives.born[order]
    is_forward = kinds == Pass.FORWARD
    has_modules = bool(is_forward.any())
    forward_starts = at[is_forward & ~np.append(False, is_forward[:-1])]
    is_backward = is_one_of(kinds, (Pass.BACKWARD, Pass.RECOMPUTED))
    # Between two backward passes there is a forward one, or the first gradient of the second.
    parts = is_forward if has_modules else kinds == Pass.OUTSIDE
    number = np.cumsum(parts | begins[order])
    mine = np.flatnonzero(is_backward)
    if not len(mine):
        nothing = np.zeros(0, np.int64)
        return Passes(
            forward_starts=forward_starts,
            backward_starts=nothing,
            backward_ends=nothing,
            after_backward=nothing,
            has_modules=has_modules,
        )
    changes = np.flatnonzero(np.diff(number[mine])) + 1
    first, last = mine[np.append(0, changes)], mine[np.append(changes - 1, len(mine) - 1)]
    # The gradient of the loss is made just before the engine runs.
    starts = np.where((first > 0) & begins[order][np.maximum(first - 1, 0)], at[np.maximum(first - 1, 0)], at[first])
    following = np.append(at, NEVER)[last + 1]
    return Passes(
        forward_starts=forward_starts,
        backward_starts=starts,
        backward_ends=at[last],
        after_backward=following,
        has_modules=has_modules,
    )


def next_of(moments: Column, at: Column) -> Column:
    """For each operation the first of `moments` above it, `NEVER` where there is none."""
    return np.append(moments, NEVER)[np.searchsorted(moments, at, side="right")]


def previous_of(moments: Column, at: Column) -> Column:
    """For each operation the last of `moments` at or below it, -1 where there is none."""
    return np.insert(moments, 0, -1)[np.searchsorted(moments, at, side="right")]
