"""Finds when each block was allocated and freed, and where forward and backward passes begin and end."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage.explaining.analysis.role.maker import Mask, Pass
from ullage.recorded.program import Column, Op, Program, is_one_of

NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLives:
    """The operations that allocated and freed each block. Arrays are indexed by block ID."""

    born: Column
    """The operation that allocated each block. It is -1 if the block is older than the recording."""
    freed: Column
    """The operation that freed each block, or `NEVER`."""
    order: Column
    """The IDs of all blocks in the order of their allocation."""

    @classmethod
    def of(cls, program: Program, keys: int) -> "KeyLives":
        """Return when the blocks of a program are allocated and freed."""
        born, freed = np.full(keys, -1, np.int64), np.full(keys, NEVER, np.int64)
        # The operations that set up the initial state allocate blocks from before the recording.
        made = np.flatnonzero(program.op == Op.ALLOCATE)
        made = made[made >= program.setup]
        ended = np.flatnonzero(program.op == Op.FREE)
        born[program.key[made]] = made
        freed[program.key[ended]] = ended
        return cls(born=born, freed=freed, order=program.key[made])


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The operations at which forward and backward passes start and end. Each array is sorted."""

    forward_starts: Column
    backward_starts: Column
    backward_ends: Column
    """The last allocation of each backward pass."""
    after_backward: Column
    """The first allocation after each backward pass, or `NEVER`."""
    has_modules: bool
    """Whether the recording contains the forward pass of an nn.Module."""


def passes_of(lives: KeyLives, part: Column, begins: Mask) -> Passes:
    """Find the forward and backward passes from the order of the allocations.

    Args:
        lives: the lifetimes of the blocks.
        part: the pass in which each block was allocated, by block ID.
        begins: whether each block is the first gradient of a backward pass, by block ID.
    """
    order = lives.order
    kinds, at = part[order], lives.born[order]
    is_forward = kinds == Pass.FORWARD
    has_modules = bool(is_forward.any())
    forward_starts = at[is_forward & ~np.append(False, is_forward[:-1])]
    is_backward = is_one_of(kinds, (Pass.BACKWARD, Pass.RECOMPUTED))
    # Two backward passes are separated by a forward pass or by the first gradient of the second one.
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
    # The gradient of the loss is allocated just before the engine runs.
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
    """Return, for each value in `at`, the next larger element of `moments`, or `NEVER`."""
    return np.append(moments, NEVER)[np.searchsorted(moments, at, side="right")]


def previous_of(moments: Column, at: Column) -> Column:
    """Return, for each value in `at`, the last element of `moments` that is less than or equal to it, or -1."""
    return np.insert(moments, 0, -1)[np.searchsorted(moments, at, side="right")]


def counterparts(
    chosen: Mask, *, lives: KeyLives, passes: Passes, part: Column, stack: Column, size: Column, stays: Mask
) -> Iterator[tuple[int, int]]:
    """Yield (key, counterpart) pairs: a block, and the equivalent block of an earlier pass that was freed.

    The lifetime of a block that was alive at the failure is not known; the lifetime of its counterpart is.

    Args:
        chosen: the blocks to find a counterpart for.
        lives: the lifetimes of the blocks.
        passes: the passes of the steps.
        part: the `Pass` of each block.
        stack: the stack of each block; -1 if no stack was recorded.
        size: the size of each block in bytes.
        stays: blocks that libraries allocate only once, so that a later pass does not allocate them again.
    """
    order = lives.order[~stays[lives.order]]
    order = order[np.isin(stack[order], np.unique(stack[order[chosen[order]]]))]  # no other block can be a counterpart
    born = lives.born[order]
    # Blocks of one stack are counted within their pass; blocks without a stack are counted within the whole of
    # backward.
    inside = is_one_of(part[order], (Pass.BACKWARD, Pass.RECOMPUTED))
    number = np.where(
        inside,
        np.searchsorted(passes.backward_ends, born, side="left"),
        np.searchsorted(passes.backward_starts, born, side="right"),
    )
    turns = np.unique(number[chosen[order]])
    is_near = np.isin(number, np.append(turns, turns - 1))  # other blocks are in no pass that is compared
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
