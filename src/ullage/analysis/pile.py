"""Blocks of one line that pile up: a loop makes them and lets go of none, whether or not an optimizer ever steps.

It is told from what is alive together for good reason. Parameters are made by modules. The activations of one step,
however deep the net, are few beside the blocks that were there before, since every layer has parameters of its own; and
where a backward pass has let go of as many before, that many are no pile. A loop that uses the same layers again and
again within one step (a recurrent net that is unrolled) looks like one that evaluates: both pile up.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage.allocator.replay import State
from ullage.analysis.recording import NO_LINE, Recording, short_line
from ullage.place import is_library
from ullage.program import Column, Op

_LEAST_BLOCKS: Final = 32
_LEAST_SHARE: Final = 0.5
"""Of what is allocated, that the pile has."""
_MORE_THAN_BEFORE: Final = 10
"""Times as many blocks as there are others, an optimizer's state aside. One step of a net keeps up to some five for
each parameter."""
_MORE_THAN_EVER: Final = 3
"""Times as many of its line as were ever let go of at once."""
_LINES_TRIED: Final = 3
_PARTS: Final = 4
_AN_EIGHTH: Final = 8
_FEW: Final = 8
"""Blocks of a line that are let go of at once, below which that says nothing."""
_MADE_ONCE: Final = re.compile(r"^(__init__|_apply|_?load_.*|from_pretrained|to_empty|reset_parameters)$")
"""Functions that make or move parameters, and data that is loaded once."""
_OPTIMIZER: Final = re.compile(r"[\\/]torch[\\/]optim[\\/]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pile:
    """What a line has piled up at the moment that matters, and what came with it; sizes in bytes after rounding."""

    line: str
    called_at: str
    """The user's line from which `line` is reached; the same where it stands there itself."""
    blocks: int
    bytes: int
    other_blocks: int
    """Of other lines, made along with them."""
    other_bytes: int
    seconds: float | None
    """From the first of them to the failure; None where times are not recorded, or some are from before."""
    is_older: bool
    """Whether some were there before recording began."""
    keys: tuple[int, ...]
    """All of them, and those that came with them, in the order in which they were made."""
    letting_go: tuple[tuple[int, int], ...]
    """(operation, block) that would let go of them as the loop goes on, so that an eighth is alive at a time."""

    @property
    def round_bytes(self) -> int:
        """What comes with one more block of the line, on average."""
        return (self.bytes + self.other_bytes) // self.blocks


def pile_of(recording: Recording) -> Pile | None:
    """Return the pile that holds most of the memory when a request fails; None where there is none."""
    if recording.failing_op is None:
        return None
    alive = _Alive.of(recording)
    # Without a line nobody can tell one loop from many places.
    candidates = [line for line in alive.by_size() if line != NO_LINE and len(alive.rows_of(line)) >= _LEAST_BLOCKS]
    return next(filter(None, (_piled(recording, alive, line) for line in candidates[:_LINES_TRIED])), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alive:
    """The blocks that are alive at the moment, in the order in which they were made."""

    key: Column
    size: Column
    born: Column
    """The operation; -1: before the recording."""
    stack: Column
    lines: dict[int, str]
    """Of each stack that makes blocks again and again; the others make them once."""

    @classmethod
    def of(cls, recording: Recording) -> "_Alive":
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
        """The lines, that of most bytes first."""
        sizes: Counter[str] = Counter()
        for stack, size in zip(self.stack.tolist(), self.size.tolist(), strict=True):
            if stack in self.lines:
                sizes[self.lines[stack]] += size
        return [line for line, _ in sizes.most_common()]

    def rows_of(self, line: str) -> Column:
        """The blocks of a line."""
        return np.flatnonzero(np.isin(self.stack, [stack for stack, one in self.lines.items() if one == line]))


def _is_made_once(recording: Recording, stack: int) -> bool:
    frames = recording.history.stacks.frames_of(stack)
    return any(_MADE_ONCE.match(frame.name) for frame in frames) or _is_optimizers(recording, stack)


def _is_optimizers(recording: Recording, stack: int) -> bool:
    return any(_OPTIMIZER.search(frame.file) for frame in recording.history.stacks.frames_of(stack))


def _piled(recording: Recording, alive: _Alive, line: str) -> Pile | None:
    """The pile of a line, if it is one."""
    end = len(recording.program) - 1
    own = _without_stragglers(alive.rows_of(line), alive.born, end)
    first = max(0, int(alive.born[own[0]]))
    marks = np.linspace(first, end, _PARTS + 1)
    seen = own[alive.born[own] >= 0]
    if np.histogram(alive.born[seen], marks)[0].min() * _PARTS * 2 < len(seen):
        return None  # it has stopped, or came all at once
    late = np.unique(alive.stack[alive.born >= marks[-2]])
    together = {alive.lines[stack] for stack in late.tolist() if stack in alive.lines}
    stacks = [stack for stack, name in alive.lines.items() if name in together]
    rows = np.flatnonzero(np.isin(alive.stack, stacks) & ((alive.born >= first) | (alive.born < 0)))
    state = [one for one in np.unique(alive.stack).tolist() if _is_optimizers(recording, one)]
    before = len(alive.key) - len(rows) - int(np.isin(alive.stack, state).sum())
    total, size = int(alive.size[rows].sum()), int(alive.size[own].sum())
    if total < _LEAST_SHARE * int(alive.size.sum()):
        return None
    most = _let_go_of_before(recording, line)
    if len(own) < _MORE_THAN_EVER * most or (most < _FEW and len(rows) < _MORE_THAN_BEFORE * before):
        return None
    is_older = bool((alive.born[own] < 0).any())
    return Pile(
        line=line,
        called_at=_called_at(recording, int(alive.stack[own[-1]])),
        blocks=len(own),
        bytes=size,
        other_blocks=len(rows) - len(own),
        other_bytes=total - size,
        seconds=None if is_older else _seconds(recording, first),
        is_older=is_older,
        keys=tuple(alive.key[rows].tolist()),
        letting_go=tuple(_letting_go(alive.key[rows].tolist(), alive.born[rows].tolist())),
    )


def _without_stragglers(rows: Column, born: Column, end: int) -> Column:
    """Leave out the few blocks that something else has left long before."""
    for number in range(len(rows) // _PARTS**2):
        at, following = born[rows[number : number + 2]].tolist()
        if at < 0 or 2 * (following - at) <= end - at:
            return rows[number:]
    return rows[len(rows) // _PARTS**2 :]


def _let_go_of_before(recording: Recording, line: str) -> int:
    """The most blocks of a line that were alive at once before at least half of those were let go of."""
    program = recording.program
    made = np.unique(recording.rebuilt.stack_of_key)
    stacks = [stack for stack in made[made >= 0].tolist() if recording.line_of_stack(stack) == line]
    of_line = np.isin(recording.rebuilt.stack_of_key, stacks)
    change = np.where(program.op == Op.ALLOCATE, 1, np.where(program.op == Op.FREE, -1, 0))
    change = change[of_line[program.key] & (change != 0)]
    most = peak = now = 0
    for one in change.tolist():
        now += one
        peak = max(peak, now)
        if 2 * now <= peak:
            most, peak = max(most, peak), max(now, 0)
    return most


def _called_at(recording: Recording, stack: int) -> str:
    """The user's line at which the outermost module is called, or else the line that allocates."""
    place = None
    for frame in reversed(recording.history.stacks.frames_of(stack)):
        if frame.name in ("_call_impl", "_wrapped_call_impl") and place is not None:
            return place
        if not is_library(frame.file):
            place = short_line(frame)
    return recording.line_of_stack(stack)


def _seconds(recording: Recording, first: int) -> float | None:
    rows = recording.rebuilt.row_of_op
    begun, failed = (int(recording.history.time_us[rows[op]]) for op in (first, len(recording.program) - 1))
    return (failed - begun) / 1e6 if 0 <= begun <= failed else None


def _letting_go(keys: list[int], born: list[int]) -> Iterator[tuple[int, int]]:
    kept = max(1, len(keys) // _AN_EIGHTH)
    for old, op in zip(keys, born[kept:], strict=False):
        yield max(op, 0), old
