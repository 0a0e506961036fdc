"""Finds where the training steps of a recorded run end. It can also reorder a run so that its largest steps come
first.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from ullage.recorded.history import History
from ullage.recorded.program import Column, Op, Program, is_one_of
from ullage.recorded.rebuild import Rebuilt

# Patterns for recorded annotations that mark a training step, the most reliable first. If there are several optimizers,
# only the annotations of the first one count.
_NAMED: Final = (re.compile(r"^ProfilerStep#"), re.compile(r"^Optimizer\.step#"), re.compile(r"^step", re.IGNORECASE))
_OPTIMIZER: Final = re.compile(r"[\\/]torch[\\/]optim[\\/]")
_NEVER: Final = np.iinfo(np.int64).max


def step_ops(history: History, rebuilt: Rebuilt, length: int) -> list[int]:
    """Return the last operation of each step within the first `length` operations of a program.

    Steps are optimizer steps. PyTorch's profiler names them in the recording (`external_annotations`), or the stacks of
    the optimizer's allocations show them. The list is empty if the recording contains neither.
    """
    ends = _by_annotation(history, rebuilt) or _by_stack(history, rebuilt)
    return [op for op in ends if 0 <= op < length]


def _by_annotation(history: History, rebuilt: Rebuilt) -> list[int]:
    ended = [note for note in history.annotations if note.stage == "END"]
    named = next(filter(None, ([note for note in ended if kind.search(note.name)] for kind in _NAMED)), [])
    first = named[0].name if named else ""
    is_one = first.startswith("Optimizer.")
    ends = [note.time_us for note in named if not is_one or note.name == first]
    times = history.time_us
    if not ends or not len(times) or times[-1] < 0:
        return []
    rows = np.searchsorted(times, np.array(sorted(ends)), side="right") - 1
    ops = np.searchsorted(rebuilt.row_of_op, rows, side="right") - 1
    return sorted({int(op) for op in ops.tolist()})


# Consecutive allocations with an optimizer's `step` on the stack belong to the same optimizer step.
def _by_stack(history: History, rebuilt: Rebuilt) -> list[int]:
    table = history.stacks.table
    steps = np.array([frame.name == "step" and bool(_OPTIMIZER.search(frame.file)) for frame in table], bool)
    of_frame = np.concatenate([[0], np.cumsum(steps[history.stacks.frames])])
    if not of_frame[-1]:
        return []
    within = of_frame[history.stacks.starts[1:]] > of_frame[history.stacks.starts[:-1]]
    is_allocation = rebuilt.program.op == Op.ALLOCATE
    ops = np.flatnonzero(is_allocation)
    stacks = rebuilt.stack_of_key[rebuilt.program.key[ops]]
    inside = (stacks >= 0) & within[np.maximum(stacks, 0)]
    if not inside.any():
        return []
    last = inside & ~np.append(inside[1:], False)
    last[-1] = False  # this step has only started
    return [int(op) for op in ops[last].tolist()]


def largest_first(program: Program, ends: Sequence[int]) -> Program | None:
    """Return a program with its steps reordered: the first step keeps its place, and the others follow in order of
    size, largest first.

    The allocations of a step move with the step and keep their order. If a later step frees a block, the free keeps its
    distance in steps and its relative position in that step. The operations after the last end count as the failed
    step; it frees all of its blocks at its end. The result is None if there are fewer than three steps.

    Args:
        program: a program whose steps do not change settings or pools, because such changes depend on the order.
        ends: the last operation of each step.
    """
    bounds = [0, *(end + 1 for end in ends)]
    if bounds[-1] < len(program):
        program = _ended(program, bounds[-1])
        bounds.append(len(program))
    steps = len(bounds) - 1
    if steps < 3 or (program.op > Op.EMPTY_CACHE)[bounds[1] :].any():
        return None
    step_of = np.repeat(np.arange(steps), np.diff(bounds))
    own = _own_step(program, step_of)
    most = _sizes_of(program, own, steps)
    order = [0, *sorted(range(1, steps), key=lambda step: -most[step])]
    place = np.empty(steps, np.int64)
    place[order] = np.arange(steps)
    into = (np.arange(len(program)) - np.array(bounds)[step_of]) / np.maximum(1, np.diff(bounds))[step_of]
    # An operation on a block of an earlier step keeps its distance in steps and its relative position in the step.
    target = place[own] + step_of - own
    into[target > steps - 1] = 1
    sequence = np.lexsort((into, np.minimum(target, steps - 1)))  # equal positions keep their original order
    return program.of_rows(sequence)


def _ended(program: Program, start: int) -> Program:
    tail = slice(start, None)
    freed = program.key[tail][program.op[tail] == Op.FREE]
    alive = np.setdiff1d(program.key[tail][program.op[tail] == Op.ALLOCATE], freed)
    zeros = np.zeros(len(alive), np.int64)
    return replace(
        program,
        op=np.append(program.op, np.full(len(alive), Op.FREE, np.int64)),
        key=np.append(program.key, alive),
        size=np.append(program.size, zeros),
        stream=np.append(program.stream, zeros),
    )


def _own_step(program: Program, step_of: Column) -> Column:
    own = step_of.astype(np.int64)
    allocations = np.flatnonzero(program.op == Op.ALLOCATE)
    born = np.zeros(int(program.key.max(initial=0)) + 1, np.int64)
    born[program.key[allocations]] = step_of[allocations]
    keyed = is_one_of(program.op, (Op.FREE, Op.RECORD_STREAM))
    own[keyed] = born[program.key[keyed]]
    return own


def _sizes_of(program: Program, own: Column, steps: int) -> list[int]:
    sizes = np.zeros(int(program.key.max(initial=0)) + 1, np.int64)
    allocations = program.op == Op.ALLOCATE
    sizes[program.key[allocations]] = program.size[allocations]
    change = np.where(allocations, sizes[program.key], np.where(program.op == Op.FREE, -sizes[program.key], 0))
    order = np.argsort(own, kind="stable")
    level = np.append(0, np.cumsum(change[order]))
    bounds = np.searchsorted(own[order], np.arange(steps + 1)).tolist()
    return [int(level[first : last + 1].max() - level[first]) for first, last in pairwise(bounds)]
