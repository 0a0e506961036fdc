"""The comparison of a recording with a replay under the run's own settings. It shows how reliable the other replays
are.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ullage.recorded.allocator.replay import Call, Replay, ReplayDevice, replay
from ullage.recorded.history import Action, History
from ullage.recorded.program import Column, Op
from ullage.recorded.rebuild import Rebuilt

Driven = tuple[tuple[str, int], ...]
"""The driver calls of one allocator operation, in order. ("take", bytes) means that the allocator obtained memory from
the driver. ("give", bytes) means that it returned memory.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """The result of comparing a recording with its replay: how many figures were compared, and how many differ."""

    operations: int
    """The number of operations that call the driver or fail, in the recording or in the replay."""
    departures: int
    """The number of operations that differ between the recording and the replay. Either their driver calls differ, or
    only one of the two fails.
    """
    placements: int
    """The number of recorded allocations whose addresses are compared with the replay."""
    displaced: int
    """The number of allocations whose address in the replay differs from the recorded address.

    The driver chooses the addresses of segments. Addresses are therefore compared relative to the first block of each
    segment.
    """
    address_ties: int
    """The number of times that the allocator chose between free blocks of equal size by an address that the recording
    does not contain. This happens in torch up to 2.11.
    """

    @property
    def is_exact(self) -> bool:
        """Whether the replay agrees with the recording in everything that was compared."""
        return not self.departures and not self.displaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A replay under the run's own settings, and the result of comparing it with the recording."""

    rebuilt: Rebuilt
    done: Replay
    fidelity: Fidelity
    first_difference: int | None
    """The first operation at which the replay differs from the recording in its driver calls, its failure or its
    address. None if the two do not differ.
    """


def fidelity_of(history: History, rebuilt: Rebuilt, done: Replay | None = None) -> Fidelity:
    """Return how well a replay under the run's own settings reproduces the recorded driver calls and addresses."""
    return compare(history, rebuilt, done).fidelity


def compare(history: History, rebuilt: Rebuilt, done: Replay | None = None) -> Comparison:
    """Return the comparison of the recording with its replay, including the replay and the first difference.

    Args:
        history: the recording of one device.
        rebuilt: the program reconstructed from it.
        done: the replay with driver calls and addresses, if it has already been made.
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
    """Return the operations that allocate a block with a recorded address. Also return, for each of them, whether the
    block has a different address in the replay.
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
    """Return the driver calls of each operation in a replay. The replay `done` must have been made with
    `calls=True`.
    """
    assert done.calls is not None
    names = {int(Call.MALLOC): "take", int(Call.MAP): "take", int(Call.FREE): "give", int(Call.UNMAP): "give"}
    found: dict[int, list[tuple[str, int]]] = {}
    columns = (done.calls.op, done.calls.call, done.calls.size, done.calls.count)
    for op, call, size, count in zip(*(column.tolist() for column in columns), strict=True):
        if call in names:
            found.setdefault(op, []).append((names[call], size * (count or 1)))
    return {op: tuple(calls) for op, calls in found.items()}
