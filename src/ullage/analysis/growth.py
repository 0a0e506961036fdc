"""Whether memory grows from step to step, and which line keeps more at every one."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from ullage._units import MIB
from ullage.analysis.recording import Recording
from ullage.program import Op

_LEAST_STEPS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What every step keeps more than the one before, in bytes, and the line that allocated most of it."""

    bytes_per_step: int
    steps: int
    line: str


def growth_of(recording: Recording) -> Growth | None:
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
    alive = [int(rebuilt.size_of_key[ever & (born <= end) & (died > end)].sum()) for end in ends]
    settled = alive[1:]  # the first step makes the optimizer's state
    more = [after - before for before, after in pairwise(settled)]
    if len(more) < _LEAST_STEPS - 1 or min(more) <= 0 or sum(more) < max(MIB, settled[0] // 200):
        return None
    kept = np.flatnonzero((born > ends[1]) & (born <= ends[-1]) & (died > ends[-1]))
    lines: Counter[str] = Counter()
    for key in kept.tolist():
        lines[recording.line_of(key)] += int(rebuilt.size_of_key[key])
    line = lines.most_common(1)[0][0] if lines else "(unknown)"
    return Growth(bytes_per_step=sum(more) // len(more), steps=len(ends), line=line)
