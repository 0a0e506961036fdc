"""Growth from step to step, and the line that keeps more at every step."""

from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Final

import numpy as np

from ullage.base.growth import StepBlock, growing
from ullage.explaining.analysis.accumulation import is_optimizers
from ullage.explaining.analysis.recording import Recording
from ullage.recorded.program import Column, Op

_OF_THE_LEVEL: Final = 200
"""Growth is left out that adds up to less than one part in this many of what was alive: it explains no failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGrowth:
    """The bytes that every step keeps beyond those of the step before, and the line that allocated most of them."""

    bytes_per_step: int
    steps: int
    line: str
    line_bytes_per_step: int
    """The part of `bytes_per_step` that `line` allocated."""
    line_blocks: int
    """Number of the line's blocks alive at the moment that matters, with those from before the recording where it knows
    them."""
    line_bytes: int
    kept_by_step: tuple[tuple[int, tuple[int, ...]], ...]
    """One pair for each step: the operation at which it ends, and the keys of the blocks that it allocated and that
    stay, of any line."""


def growth_of(recording: Recording) -> StepGrowth | None:
    """Return what grows over the recorded steps by the rule of `ullage.base.growth`; None where nothing does."""
    ends = recording.step_ops()
    if len(ends) < 2:
        return None
    program, rebuilt = recording.program, recording.rebuilt
    born = np.full(len(rebuilt.size_of_key), -1, np.int64)
    died = np.full(len(rebuilt.size_of_key), np.iinfo(np.int64).max, np.int64)
    allocations, frees = np.flatnonzero(program.op == Op.ALLOCATE), np.flatnonzero(program.op == Op.FREE)
    born[program.key[allocations]] = allocations
    died[program.key[frees]] = frees
    if recording.failing_op is not None:
        died[program.key[recording.failing_op]] = 0  # it never lived
    lived = ((born >= 0) | (rebuilt.row_of_key < 0)) & (died > born)
    levels = _levels(len(program), rebuilt.size_of_key[lived], born[lived], died[lived])
    end_bytes = levels[ends].tolist()
    peaks = [int(levels[first : last + 1].max()) for first, last in pairwise([0, *ends])]
    found = growing(_step_blocks(recording, ends, born, died), end_bytes, peaks)
    if found is None or found.bytes_per_step * (len(ends) - 1) < end_bytes[1] // _OF_THE_LEVEL:
        return None
    kept: dict[int, list[int]] = {step: [] for step in range(1, len(ends) + 1)}
    for block in (block for of_line in found.kept.values() for block in of_line):
        kept[block.step].append(block.key)
    held = [block.size_bytes for block in recording.held() if block.line == found.line]
    return StepGrowth(
        bytes_per_step=found.bytes_per_step,
        steps=len(ends),
        line=found.line,
        line_bytes_per_step=found.line_bytes_per_step,
        line_blocks=len(held),
        line_bytes=sum(held),
        kept_by_step=tuple((ends[step - 1], tuple(keys)) for step, keys in kept.items() if keys),
    )


def _levels(length: int, sizes: Column, born: Column, died: Column) -> Column:
    """Return the bytes alive after each operation; blocks that were born before the first were there already."""
    changes = np.zeros(length + 1, np.int64)
    np.add.at(changes, np.maximum(born, 0), sizes)
    np.add.at(changes, np.minimum(died, length), -sizes)
    return np.cumsum(changes)[:length]


def _step_blocks(recording: Recording, ends: list[int], born: Column, died: Column) -> list[StepBlock[str]]:
    """Return the blocks that were alive at the end of their own step, without optimizers' state.

    An optimizer makes the state of a parameter when that gets its first gradient, in whichever step.
    """
    steps, until = np.searchsorted(ends, born, side="left") + 1, np.searchsorted(ends, died, side="left")
    line_of, is_state = cache(recording.line_of_stack), cache(partial(is_optimizers, recording))
    sizes = recording.rebuilt.size_of_key
    return [
        StepBlock(line=line_of(stack), step=int(steps[key]), until=int(until[key]), size_bytes=int(sizes[key]), key=key)
        for key in np.flatnonzero((born >= 0) & (steps <= until)).tolist()
        if not is_state(stack := recording.stack_of(key))
    ]
