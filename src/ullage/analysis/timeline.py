"""Memory over a recorded run, by the user's line: the data of a picture."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from ullage.allocator.replay import ReplayDevice, replay
from ullage.analysis.recording import Recording
from ullage.program import Column, Op

_MOST_MOMENTS: Final = 600
_LINES_SHOWN: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Bytes at the fullest moment of each stretch of the run, in layers that add up to the reserved bytes."""

    layers: tuple[tuple[str, tuple[int, ...]], ...]
    """Stacked layers from the bottom up: lines (their rounding is in "rounding"), other lines, freed but pending,
    cached."""
    step_ends: tuple[int, ...]
    """Indices of the moments at which steps end."""


def timeline_of(recording: Recording) -> Timeline | None:
    """Return the timeline; None where nothing was recorded over time."""
    program, rebuilt = recording.program, recording.rebuilt
    if not len(program):
        return None
    device = ReplayDevice(total_bytes=rebuilt.room_bytes)
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
    """Return the fullest moment of each stretch, and the last moment."""
    edges = np.unique(np.linspace(0, len(levels), min(_MOST_MOMENTS, len(levels)) + 1).astype(np.int64))
    found = [int(low + np.argmax(levels[low:high])) for low, high in pairwise(edges.tolist())]
    return np.unique(np.array([*found, len(levels) - 1], np.int64))


def _lines(recording: Recording) -> tuple[list[str], Column]:
    """Return the lines that held most bytes at once, and for every block its index among them."""
    rebuilt = recording.rebuilt
    before = (rebuilt.stack_of_key < 0) & (rebuilt.row_of_key < 0)
    stacks, where = np.unique(np.where(before, -2, rebuilt.stack_of_key), return_inverse=True)
    names = [recording.line_of_stack(int(stack)) for stack in stacks.tolist()]
    sizes: Counter[str] = Counter()
    for block in recording.held():
        sizes[block.line] += block.size_bytes
    top = [name for name, _ in sizes.most_common(_LINES_SHOWN)]
    row = {name: index for index, name in enumerate(top)}
    rows = np.array([row.get(name, len(top)) for name in names], np.int64)
    return [*top, "other lines"], rows[where]


def _requested_changes(recording: Recording) -> Column:
    """Return the change of the requested bytes at each operation."""
    program, rebuilt = recording.program, recording.rebuilt
    keys = np.clip(program.key, 0, max(0, len(rebuilt.size_of_key) - 1))
    sizes = rebuilt.size_of_key[keys] if len(rebuilt.size_of_key) else np.zeros(len(program), np.int64)
    change = np.where(program.op == Op.ALLOCATE, sizes, np.where(program.op == Op.FREE, -sizes, 0))
    failed = [*recording.done.oom_ops.tolist(), *recording.done.rejected_ops.tolist()]
    change[failed] = 0
    return np.asarray(change, np.int64)
