"""The comparison of a replay under the run's own settings with the recording: what replays prove rests on it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ullage.recorded.allocator.replay import Call, Replay, ReplayDevice, replay
from ullage.recorded.history import Action, History
from ullage.recorded.program import Column, Op
from ullage.recorded.rebuild import Rebuilt

Driven = tuple[tuple[str, int], ...]
"""Driver calls in order, each ("take" or "give", bytes): memory taken from the driver or given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """What was compared between a recording and its replay, and how much of it differs."""

    operations: int
    """Number of operations that call the driver or fail, in the recording or in the replay."""
    departures: int
    """Number of operations at which the driver's calls differ, or of which only one of the two fails."""
    placements: int
    """Number of recorded allocations, each of which has an address."""
    displaced: int
    """Number of allocations that the replay puts elsewhere. Segments are matched by the first block in each, because
    the driver chooses where a segment lies."""
    address_ties: int
    """Number of choices between equally large free blocks that depend on an address which the recording lacks (torch up
    to 2.11)."""

    @property
    def is_exact(self) -> bool:
        """Whether nothing differs of what was compared."""
        return not self.departures and not self.displaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A replay under the run's own settings beside the recording."""

    rebuilt: Rebuilt
    done: Replay
    fidelity: Fidelity
    first_difference: int | None
    """The first operation that calls the driver otherwise, fails otherwise, or puts its block elsewhere."""


def fidelity_of(history: History, rebuilt: Rebuilt, done: Replay | None = None) -> Fidelity:
    """Replay a program under its own settings, and compare all driver calls and all addresses with the recording."""
    return compare(history, rebuilt, done).fidelity


def compare(history: History, rebuilt: Rebuilt, done: Replay | None = None) -> Comparison:
    """Do as `fidelity_of`, and return what else came of the replay.

    Args:
        history: the recording of one device.
        rebuilt: its program.
        done: the replay with its calls and places, where it was made already.
    """
    done = done or replay(rebuilt.program, rebuilt.settings, ReplayDevice.of(rebuilt), calls=True, places=True)
    ours, theirs = driven_by_op(done), rebuilt.recorded_calls
    failed = set(_failed_ops(history, rebuilt))
    fails = {*done.oom_ops.tolist(), *done.rejected_ops.tolist()}
    ops = ours.keys() | theirs.keys() | failed | fails
    departing = [op for op in ops if ours.get(op) != theirs.get(op) or (op in failed) != (op in fails)]
    placed, is_elsewhere = placements_of(history, rebuilt, done)
    return Comparison(
        rebuilt=rebuilt,
        done=done,
        fidelity=Fidelity(
            operations=len(ops),
            departures=len(departing),
            placements=len(placed),
            displaced=int(np.count_nonzero(is_elsewhere)),
            address_ties=done.address_ties,
        ),
        first_difference=min([*departing, *placed[is_elsewhere][:1].tolist()], default=None),
    )


def _failed_ops(history: History, rebuilt: Rebuilt) -> list[int]:
    """Return the operations whose entry is a request that failed."""
    ops = rebuilt.ops_of(np.flatnonzero(history.action == Action.OOM))
    found: list[int] = ops[rebuilt.program.op[ops] == Op.ALLOCATE].tolist()
    return found


def placements_of(history: History, rebuilt: Rebuilt, done: Replay) -> tuple[Column, npt.NDArray[np.bool_]]:
    """Return the operations that allocate what was recorded with an address, and for each whether it lies elsewhere."""
    assert done.places is not None
    program = rebuilt.program
    ops = np.flatnonzero(program.op == Op.ALLOCATE)
    ops = ops[history.action[rebuilt.row_of_op[ops]] == Action.ALLOC]
    address, segment = done.places.address[ops], done.places.segment[ops]
    moved = history.address[rebuilt.row_of_op[ops]] - address
    # Segments that were there before have their addresses; of others the first block shows how far they are moved.
    expandable = sum(start.is_expandable for start in program.start)
    was_there = np.where(segment >= 0, segment < len(program.start) - expandable, ~segment < expandable)
    number = segment - segment.min(initial=0)
    first = np.zeros(int(number.max(initial=0)) + 1, np.int64)
    first[number[::-1]] = np.arange(len(ops))[::-1]  # the last that is written stays
    expected = np.where(was_there, 0, moved[first[number]])
    return ops, (moved != expected) | (address < 0)


def driven_by_op(done: Replay) -> dict[int, Driven]:
    """Return the memory that each operation of a replay with `calls` takes from the driver and gives back."""
    assert done.calls is not None
    names = {int(Call.MALLOC): "take", int(Call.MAP): "take", int(Call.FREE): "give", int(Call.UNMAP): "give"}
    found: dict[int, list[tuple[str, int]]] = {}
    columns = (done.calls.op, done.calls.call, done.calls.size, done.calls.count)
    for op, call, size, count in zip(*(column.tolist() for column in columns), strict=True):
        if call in names:
            found.setdefault(op, []).append((names[call], size * (count or 1)))
    return {op: tuple(calls) for op, calls in found.items()}
