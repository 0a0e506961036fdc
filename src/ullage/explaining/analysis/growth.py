"""Growth from step to step, and the line that keeps more at every step."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from ullage.base.units import MIB
from ullage.explaining.analysis.recording import Recording
from ullage.recorded.program import Column, Op

_LEAST_STEPS: Final = 4


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
    """Return the growth over the last steps; None where memory does not grow at every one of at least four."""
    ends = recording.step_ops()
    if len(ends) < _LEAST_STEPS + 1:
        return None
    program, rebuilt = recording.program, recording.rebuilt
    born = np.full(len(rebuilt.size_of_key), -1, np.int64)
    died = np.full(len(rebuilt.size_of_key), np.iinfo(np.int64).max, np.int64)
    allocations, frees = np.flatnonzero(program.op == Op.ALLOCATE), np.flatnonzero(program.op == Op.FREE)
    born[program.key[allocations]] = allocations
    died[program.key[frees]] = frees
    if recording.failing_op is not None:
        died[program.key[recording.failing_op]] = 0  # it never lived
    ever = (born >= 0) | (rebuilt.row_of_key < 0)
    lived = ever & (died > born)
    sizes, moments = rebuilt.size_of_key[lived], np.array(ends)
    alive = (_until(moments, born[lived], sizes) - _until(moments, died[lived], sizes)).tolist()
    settled = alive[1:]  # the first step makes the optimizer's state
    more = [after - before for before, after in pairwise(settled)]
    if len(more) < _LEAST_STEPS - 1 or min(more) <= 0 or sum(more) < max(MIB, settled[0] // 200):
        return None
    kept = np.flatnonzero((born > ends[1]) & (born <= ends[-1]) & (died > ends[-1]))
    by_line: dict[str, list[int]] = {}
    # What the last step made may go with the next, as its gradients do: where other blocks tell the line, they do.
    outlived = kept[born[kept] <= ends[-2]]
    told, steps = (outlived, len(more) - 1) if len(outlived) else (kept, len(more))
    for key in told.tolist():
        by_line.setdefault(recording.line_of(key), []).append(key)
    if not by_line:
        return None
    line = max(by_line, key=lambda line: int(rebuilt.size_of_key[by_line[line]].sum()))
    line_bytes = int(rebuilt.size_of_key[by_line[line]].sum()) // steps
    made_in = np.searchsorted(np.array(ends), born[kept])
    kept_by_step = tuple((ends[step], tuple(kept[made_in == step].tolist())) for step in np.unique(made_in).tolist())
    held = [block.size_bytes for block in recording.held() if block.line == line]
    return StepGrowth(
        bytes_per_step=sum(more) // len(more),
        steps=len(ends),
        line=line,
        line_bytes_per_step=line_bytes,
        line_blocks=len(held),
        line_bytes=sum(held),
        kept_by_step=kept_by_step,
    )


def _until(moments: Column, when: Column, sizes: Column) -> Column:
    """Return for each moment the sum of the sizes of what happened by then."""
    order = np.argsort(when, kind="stable")
    sums = np.concatenate(([0], np.cumsum(sizes[order])))
    return np.asarray(sums[np.searchsorted(when[order], moments, side="right")], np.int64)
