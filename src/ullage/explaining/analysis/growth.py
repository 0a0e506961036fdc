"""Detects growing memory: a line that keeps more at every training step, or a loop that never frees its blocks.

An `Accumulation` consists of blocks that a loop allocates at one line and never frees. Two kinds of long-lived blocks
are legitimate and do not count. Modules allocate parameters. The activations of one step are few compared with the
blocks that existed before, however deep the net, because every layer has its own parameters. If a backward pass has
earlier freed a number of blocks of the line, that number of blocks does not count as kept. A loop that uses the same
layers repeatedly within one step (an unrolled recurrent net) looks the same as an evaluation loop: both keep blocks.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Final

import numpy as np

from ullage.base.growth import StepBlock, growing
from ullage.explaining.analysis.frame_names import is_in
from ullage.explaining.analysis.recording import Recording
from ullage.recorded.allocator.replay import State
from ullage.recorded.frame import short_line
from ullage.recorded.program import Column, Op

_LEAST_BLOCKS: Final = 32
# A threshold for a leak in a loop. The blocks that the loop keeps must hold at least this share of all allocated bytes.
_LEAST_SHARE_OF_ALLOCATED: Final = 0.5
# A threshold for a leak in a loop. The number of blocks that the loop keeps, divided by the number that all other code
# keeps, must be at least this. Optimizer state does not count. One training step of a net keeps at most about five
# blocks for each parameter.
_TIMES_OTHER_BLOCKS: Final = 10
# A threshold for a leak in a loop. The number of blocks that a source line keeps, divided by the largest number that it
# freed at one time, must be at least this.
_TIMES_FREED_BLOCKS: Final = 3
_MOST_LINES_TRIED: Final = 3
_SECTIONS: Final = 4
_KEEP_ONE_IN: Final = 8
# A number of blocks. If a source line has freed at least this many at one time, its code does free its blocks.
_LEAST_FREED_BLOCKS: Final = 8
# The functions that create or move parameters, or that load data once. Blocks allocated in them are meant to stay.
_MADE_ONCE: Final = re.compile(r"^(__init__|_apply|_?load_.*|from_pretrained|to_empty|reset_parameters)$")
_OPTIMIZER: Final = re.compile(r"[\\/]torch[\\/]optim[\\/]")
# A divisor. Growth over the run is ignored if it is less than the memory in use divided by this number. Such small
# growth explains no failure.
_OF_THE_LEVEL: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """Blocks that a loop allocates at one source line and never frees. Sizes are in bytes."""

    line: str
    called_at: str
    """The source line that calls the outermost nn.Module. It equals `line` if no module is involved."""
    blocks: int
    bytes: int
    other_blocks: int
    """The number of live blocks that other source lines allocated in the same loop."""
    other_bytes: int
    seconds: float | None
    """The seconds between the first allocation that the loop never freed and the failure. None if unknown."""
    is_older: bool
    """Whether some of the blocks that the loop never freed were allocated before the recording began."""
    keys: tuple[int, ...]
    """The IDs of all blocks that the loop never freed, oldest first. They include blocks from other source lines."""
    frees: tuple[tuple[int, int], ...]
    """The frees that ullage adds to a simulation, as (operation index, block ID) pairs. They leave only the newest
    eighth of the loop's blocks allocated.
    """

    @property
    def round_bytes(self) -> int:
        """The average number of bytes that one iteration of the loop adds."""
        return (self.bytes + self.other_bytes) // self.blocks


def accumulation_of(recording: Recording) -> Accumulation | None:
    """Return the blocks that a loop never frees, if they hold most of the memory. Otherwise, return None."""
    if recording.failing_op is None:
        return None
    alive = _AliveAtFailure.of(recording)
    # Without recorded lines, the blocks of one loop cannot be distinguished from the blocks of many places.
    candidates = [
        line for line in alive.by_size() if not line.startswith("(") and len(alive.rows_of(line)) >= _LEAST_BLOCKS
    ]
    return next(
        filter(None, (_accumulated_at(recording, alive, line) for line in candidates[:_MOST_LINES_TRIED])), None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _AliveAtFailure:
    key: Column
    size: Column
    # -1 if the block was allocated before the recording
    born: Column
    stack: Column
    # Stacks of code that runs only once are left out, such as `__init__` functions and the loading of data.
    lines: dict[int, str]

    @classmethod
    def of(cls, recording: Recording) -> "_AliveAtFailure":
        blocks, program = recording.moment.blocks, recording.program
        chosen = (blocks.state == State.ALLOCATED) & ~np.isin(blocks.key, list(recording.held_back))
        key, size = blocks.key[chosen], blocks.size[chosen]
        made = np.full(len(recording.rebuilt.stack_of_key), -1, np.int64)
        allocations = np.flatnonzero(program.op == Op.ALLOCATE)
        made[program.key[allocations]] = allocations
        born = np.where(key >= 0, made[key], -1)
        order = np.argsort(born, kind="stable")
        key, size, born = key[order], size[order], born[order]
        stack = np.array([recording.stack_of(one) for one in key.tolist()], np.int64)
        lines = {
            one: recording.line_of_stack(one)
            for one in np.unique(stack[stack >= 0]).tolist()
            if not _is_made_once(recording, one)
        }
        return cls(key=key, size=size, born=born, stack=stack, lines=lines)

    def by_size(self) -> list[str]:
        sizes: Counter[str] = Counter()
        for stack, size in zip(self.stack.tolist(), self.size.tolist(), strict=True):
            if stack in self.lines:
                sizes[self.lines[stack]] += size
        return [line for line, _ in sizes.most_common()]

    def rows_of(self, line: str) -> Column:
        return np.flatnonzero(np.isin(self.stack, [stack for stack, one in self.lines.items() if one == line]))


def _is_made_once(recording: Recording, stack: int) -> bool:
    frames = recording.history.stacks.frames_of(stack)
    return any(_MADE_ONCE.match(frame.name) for frame in frames) or is_optimizers(recording, stack)


def is_optimizers(recording: Recording, stack: int) -> bool:
    """Return whether a call stack contains a function of torch.optim."""
    return stack >= 0 and any(
        is_in(_OPTIMIZER.search, frame.file) for frame in recording.history.stacks.frames_of(stack)
    )


def _accumulated_at(recording: Recording, alive: _AliveAtFailure, line: str) -> Accumulation | None:
    end = len(recording.program) - 1
    own = _without_stragglers(alive.rows_of(line), alive.born, end)
    first = max(0, int(alive.born[own[0]]))
    marks = np.linspace(first, end, _SECTIONS + 1)
    seen = own[alive.born[own] >= 0]
    if np.histogram(alive.born[seen], marks)[0].min() * _SECTIONS * 2 < len(seen):
        return None  # the allocations have stopped, or happened all at once
    late = np.unique(alive.stack[alive.born >= marks[-2]])
    together = {alive.lines[stack] for stack in late.tolist() if stack in alive.lines}
    stacks = [stack for stack, name in alive.lines.items() if name in together]
    rows = np.flatnonzero(np.isin(alive.stack, stacks) & ((alive.born >= first) | (alive.born < 0)))
    state = [one for one in np.unique(alive.stack).tolist() if is_optimizers(recording, one)]
    before = len(alive.key) - len(rows) - int(np.isin(alive.stack, state).sum())
    total, size = int(alive.size[rows].sum()), int(alive.size[own].sum())
    if total < _LEAST_SHARE_OF_ALLOCATED * int(alive.size.sum()):
        return None
    most = _most_freed_together(recording, line)
    if len(own) < _TIMES_FREED_BLOCKS * most or (
        most < _LEAST_FREED_BLOCKS and len(rows) < _TIMES_OTHER_BLOCKS * before
    ):
        return None
    is_older = bool((alive.born[own] < 0).any())
    return Accumulation(
        line=line,
        called_at=_called_at(recording, int(alive.stack[own[-1]])),
        blocks=len(own),
        bytes=size,
        other_blocks=len(rows) - len(own),
        other_bytes=total - size,
        seconds=None if is_older else _seconds(recording, first),
        is_older=is_older,
        keys=tuple(alive.key[rows].tolist()),
        frees=tuple(_frees_of(alive.key[rows].tolist(), alive.born[rows].tolist())),
    )


def _without_stragglers(rows: Column, born: Column, end: int) -> Column:
    for number in range(len(rows) // _SECTIONS**2):
        at, following = born[rows[number : number + 2]].tolist()
        if at < 0 or 2 * (following - at) <= end - at:
            return rows[number:]
    return rows[len(rows) // _SECTIONS**2 :]


def _most_freed_together(recording: Recording, line: str) -> int:
    program = recording.program
    made = np.unique(recording.rebuilt.stack_of_key)
    stacks = [stack for stack in made[made >= 0].tolist() if recording.line_of_stack(stack) == line]
    is_of_line = np.zeros(max(stacks, default=-1) + 2, np.bool_)  # the last element is for blocks without a stack
    is_of_line[stacks] = True
    of_line = is_of_line[np.minimum(recording.rebuilt.stack_of_key, len(is_of_line) - 1)]
    change = np.where(program.op == Op.ALLOCATE, 1, np.where(program.op == Op.FREE, -1, 0))
    change = change[of_line[program.key] & (change != 0)]
    most = peak = now = 0
    for one in change.tolist():
        now += one
        if now > peak:
            peak = now
        if 2 * now <= peak:
            most, peak = max(most, peak), max(now, 0)
    return most


def _called_at(recording: Recording, stack: int) -> str:
    place = None
    for frame in reversed(recording.history.stacks.frames_of(stack)):
        if frame.name in ("_call_impl", "_wrapped_call_impl") and place is not None:
            return place
        if frame.is_users:
            place = short_line(frame)
    return recording.line_of_stack(stack)


def _seconds(recording: Recording, first: int) -> float | None:
    rows = recording.rebuilt.row_of_op
    begun, failed = (int(recording.history.time_us[rows[op]]) for op in (first, len(recording.program) - 1))
    return (failed - begun) / 1e6 if 0 <= begun <= failed else None


def _frees_of(keys: list[int], born: list[int]) -> Iterator[tuple[int, int]]:
    kept = max(1, len(keys) // _KEEP_ONE_IN)
    for old, op in zip(keys, born[kept:], strict=False):
        yield max(op, 0), old


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGrowth:
    """How much memory each training step adds, and which source line allocates most of it."""

    bytes_per_step: int
    steps: int
    line: str
    line_bytes_per_step: int
    """The bytes that the source line `line` adds in every step."""
    line_blocks: int
    """The number of live blocks that the source line `line` allocated."""
    line_bytes: int
    kept_by_step: tuple[tuple[int, tuple[int, ...]], ...]
    """A pair for each training step: the index of the step's last operation, and the IDs of the blocks that the step
    allocated and never freed.
    """


def growth_of(recording: Recording) -> StepGrowth | None:
    """Return how memory grows from one training step to the next. Return None if it does not grow."""
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
        died[program.key[recording.failing_op]] = 0  # the failed request never became a block
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
    changes = np.zeros(length + 1, np.int64)
    np.add.at(changes, np.maximum(born, 0), sizes)
    np.add.at(changes, np.minimum(died, length), -sizes)
    return np.cumsum(changes)[:length]


# Optimizer state is left out. An optimizer creates the state of a parameter in the step in which the parameter gets its
# first gradient, which can be any step.
def _step_blocks(recording: Recording, ends: list[int], born: Column, died: Column) -> list[StepBlock[str]]:
    steps, until = np.searchsorted(ends, born, side="left") + 1, np.searchsorted(ends, died, side="left")
    line_of, is_state = cache(recording.line_of_stack), cache(partial(is_optimizers, recording))
    rebuilt, keys = recording.rebuilt, np.flatnonzero((born >= 0) & (steps <= until))
    stacks = rebuilt.stack_of_key[keys]
    stacks = np.where(
        (stacks < 0) & (rebuilt.row_of_key[keys] < 0), -2, stacks
    )  # the same values as `Recording.stack_of`
    columns = (stacks, steps[keys], until[keys], rebuilt.size_of_key[keys], keys)
    return [
        StepBlock(line=line_of(stack), step=step, until=last, size_bytes=size, key=key)
        for stack, step, last, size, key in zip(*(column.tolist() for column in columns), strict=True)
        if not is_state(stack)
    ]
