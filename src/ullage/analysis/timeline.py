"""Memory over a recorded run, by the user's line: what a picture needs."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from ullage.allocator.replay import Device, replay
from ullage.analysis.recording import Recording
from ullage.program import Column, Op

_MOMENTS: Final = 600
_LINES: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Bytes at moments of the run, the fullest of each stretch, in layers that add up to what was reserved."""

    layers: tuple[tuple[str, tuple[int, ...]], ...]
    """From below: lines (after rounding in "rounding"), other lines, freed but pending, cached."""
    step_ends: tuple[int, ...]
    """Positions among the moments."""


def timeline_of(recording: Recording) -> Timeline | None:
    """Return the timeline; None where nothing was recorded over time."""
    program, rebuilt = recording.program, recording.rebuilt
    if not len(program):
        return None
    device = Device(total_bytes=rebuilt.room_bytes)
    levels = replay(program, rebuilt.settings, device, levels=True).levels
    assert levels is not None
    moments = _fullest(levels.allocated_bytes)
    lines, line_of_key = _lines(recording)
    change = _requested_changes(recording)
    alive_at_start = np.zeros(len(rebuilt.size_of_key), bool)
    for segment in program.start:
        alive_at_start[[key for *_, key in segment.blocks if key >= 0]] = True
    layers = []
    total = np.zeros(len(moments), np.int64)
    for row, name in enumerate(lines):
        keys = line_of_key == row
        mine = np.cumsum(np.where(keys[program.key], change, 0))[moments]
        mine = mine + int(rebuilt.size_of_key[keys & alive_at_start].sum())
        total += mine
        layers.append((name, mine))
    allocated, active = levels.allocated_bytes[moments], levels.active_bytes[moments]
    layers.append(("rounding", np.maximum(0, allocated - total)))
    layers.append(("freed, pending", active - allocated))
    layers.append(("cached", levels.reserved_bytes[moments] - active))
    ends = np.searchsorted(moments, np.array(recording.step_ops(), np.int64))
    return Timeline(
        layers=tuple((name, tuple(values.tolist())) for name, values in layers if values.any()),
        step_ends=tuple(min(end, len(moments) - 1) for end in ends.tolist()),
    )


def _fullest(levels: Column) -> Column:
    """The fullest moment of each stretch, and the last."""
    edges = np.unique(np.linspace(0, len(levels), min(_MOMENTS, len(levels)) + 1).astype(np.int64))
    found = [int(low + np.argmax(levels[low:high])) for low, high in pairwise(edges.tolist())]
    return np.unique(np.array([*found, len(levels) - 1], np.int64))


def _lines(recording: Recording) -> tuple[list[str], Column]:
    """The lines that allocated most bytes at once, and the row among them of every block."""
    rebuilt = recording.rebuilt
    before = (rebuilt.stack_of_key < 0) & (rebuilt.row_of_key < 0)
    stacks, where = np.unique(np.where(before, -2, rebuilt.stack_of_key), return_inverse=True)
    names = [recording.line_of_stack(int(stack)) for stack in stacks.tolist()]
    sizes: Counter[str] = Counter()
    for block in recording.held():
        sizes[block.line] += block.size_bytes
    top = [name for name, _ in sizes.most_common(_LINES)]
    row = {name: index for index, name in enumerate(top)}
    rows = np.array([row.get(name, len(top)) for name in names], np.int64)
    return [*top, "other lines"], rows[where]


def _requested_changes(recording: Recording) -> Column:
    """What each operation adds to the bytes that are asked for and alive."""
    program, rebuilt = recording.program, recording.rebuilt
    keys = np.clip(program.key, 0, max(0, len(rebuilt.size_of_key) - 1))
    sizes = rebuilt.size_of_key[keys] if len(rebuilt.size_of_key) else np.zeros(len(program), np.int64)
    change = np.where(program.op == Op.ALLOCATE, sizes, np.where(program.op == Op.FREE, -sizes, 0))
    failed = [*recording.done.oom_ops.tolist(), *recording.done.rejected_ops.tolist()]
    change[failed] = 0
    return np.asarray(change, np.int64)
