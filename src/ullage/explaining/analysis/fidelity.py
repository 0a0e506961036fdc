"""Compares a recorded run with its simulation under the same settings. This shows how reliable the simulation is."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ullage.recorded.allocator.replay import Call, Replay, ReplayDevice, replay
from ullage.recorded.history import Action, History
from ullage.recorded.program import Column, Op
from ullage.recorded.rebuild import Rebuilt

Driven = tuple[tuple[str, int], ...]
"""The driver calls of one allocator operation, in order. ("take", bytes) allocates driver memory, and ("give", bytes)
frees it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """How closely a simulation matches the recording: how many values were compared, and how many differ."""

    operations: int
    """The number of operations that call the driver or fail."""
    departures: int
    """The number of operations whose driver calls or failures differ from the recording."""
    placements: int
    """The number of allocations whose addresses are compared."""
    displaced: int
    """The number of allocations whose simulated address differs from the recorded address. Addresses are compared
    relative to their segment.
    """
    address_ties: int
    """The number of times that the allocator chose by address between equally large free blocks whose addresses were
    not recorded. It is always 0 from torch 2.12 on.
    """

    @property
    def is_exact(self) -> bool:
        """Whether the simulation matches the recording in every compared value."""
        return not self.departures and not self.displaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A simulation of the run under its own settings, and its comparison with the recording."""

    rebuilt: Rebuilt
    done: Replay
    fidelity: Fidelity
    first_difference: int | None
    """The index of the first operation at which the simulation differs from the recording, or None."""


def fidelity_of(history: History, rebuilt: Rebuilt, done: Replay | None = None) -> Fidelity:
    """Return how closely a simulation reproduces the recorded driver calls and addresses."""
    return compare(history, rebuilt, done).fidelity


def compare(history: History, rebuilt: Rebuilt, done: Replay | None = None) -> Comparison:
    """Simulate a recorded run, and compare the simulation with the recording.

    Args:
        history: the recording of one device.
        rebuilt: the allocator operations that ullage reconstructed from the recording.
        done: a finished simulation of these operations, with driver calls and addresses. If None, ullage runs one.
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
    ops = rebuilt.ops_of(np.flatnonzero(history.action == Action.OOM))
    found: list[int] = ops[rebuilt.program.op[ops] == Op.ALLOCATE].tolist()
    return found


def placements_of(history: History, rebuilt: Rebuilt, done: Replay) -> tuple[Column, npt.NDArray[np.bool_]]:
    """Return the allocations with recorded addresses, each with a flag that says whether its simulated address
    differs.
    """
    assert done.places is not None
    program = rebuilt.program
    ops = np.flatnonzero(program.op == Op.ALLOCATE)
    ops = ops[history.action[rebuilt.row_of_op[ops]] == Action.ALLOC]
    address, segment = done.places.address[ops], done.places.segment[ops]
    moved = history.address[rebuilt.row_of_op[ops]] - address
    # Segments from before the recording keep their addresses. Of each other segment, the first block gives the offset
    # between
    # replay and recording.
    expandable = sum(start.is_expandable for start in program.start)
    was_there = np.where(segment >= 0, segment < len(program.start) - expandable, ~segment < expandable)
    number = segment - segment.min(initial=0)
    first = np.zeros(int(number.max(initial=0)) + 1, np.int64)
    first[number[::-1]] = np.arange(len(ops))[::-1]  # the assignment for the first block is the last one written
    expected = np.where(was_there, 0, moved[first[number]])
    return ops, (moved != expected) | (address < 0)


def driven_by_op(done: Replay) -> dict[int, Driven]:
    """Return the driver calls of each operation in a replay. The replay must have been made with `calls=True`."""
    assert done.calls is not None
    names = {int(Call.MALLOC): "take", int(Call.MAP): "take", int(Call.FREE): "give", int(Call.UNMAP): "give"}
    found: dict[int, list[tuple[str, int]]] = {}
    columns = (done.calls.op, done.calls.call, done.calls.size, done.calls.count)
    for op, call, size, count in zip(*(column.tolist() for column in columns), strict=True):
        if call in names:
            found.setdefault(op, []).append((names[call], size * (count or 1)))
    return {op: tuple(calls) for op, calls in found.items()}
