"""The comparison of a replay under the run's own settings with the recording: what replays prove rests on it."""

from dataclasses import dataclass

from ullage.allocator.replay import Call, Replay, ReplayDevice, replay
from ullage.analysis.recording import Recording
from ullage.history import History
from ullage.rebuild import Rebuilt, program_of
from ullage.settings import ALLOCATORS, USUAL, SettingsError

Driven = tuple[tuple[str, int], ...]
"""Driver calls in order, each ("take" or "give", bytes): memory taken from the driver or given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """Number of operations that call the driver in the recording or in the replay, and at how many the calls differ."""

    operations: int
    departures: int
    address_ties: int
    """Number of choices between equally large free blocks that depend on an address which the recording lacks (torch up
    to 2.11)."""


def fidelity_of(rebuilt: Rebuilt) -> Fidelity:
    """Replay a program under its own settings and compare every call of the driver with the recorded segment events."""
    done = replay(rebuilt.program, rebuilt.settings, ReplayDevice(total_bytes=rebuilt.room_bytes), calls=True)
    ours, theirs = driven_by_op(done), rebuilt.recorded_calls
    ops = ours.keys() | theirs.keys()
    departures = sum(ours.get(op) != theirs.get(op) for op in ops)
    return Fidelity(operations=len(ops), departures=departures, address_ties=done.address_ties)


def closest_semantics(history: History, *, alloc_conf: str | None = None) -> str | None:
    """Return the version of the allocator whose replay is closest to the recording; None where 2.11's is exact.

    Raises:
        SettingsError: `alloc_conf` cannot be read.
    """
    departures = {}
    # What a snapshot holds tells versions apart by their ties alone; the newest of each knows the most options, and of
    # several that do it exactly the newest is told.
    usual, *others = {allocator.tie: semantics for semantics, allocator in ALLOCATORS.items()}.values()
    newest_first = others[::-1]
    for semantics in (usual, *newest_first):
        try:
            rebuilt = program_of(history, semantics=semantics, alloc_conf=alloc_conf)
        except SettingsError:  # an option that this version does not know
            if semantics == newest_first[0]:
                raise
            continue
        departures[semantics] = fidelity_of(Recording.of(history, rebuilt).rebuilt).departures
        if not departures[semantics]:
            break
    nearest = min(departures, key=departures.__getitem__)
    return nearest if nearest != USUAL else None


def driven_by_op(done: Replay) -> dict[int, Driven]:
    """Return the memory that each operation of a replay with `calls` takes from the driver and gives back."""
    assert done.calls is not None
    names = {Call.MALLOC: "take", Call.MAP: "take", Call.FREE: "give", Call.UNMAP: "give"}
    found: dict[int, list[tuple[str, int]]] = {}
    columns = (done.calls.op, done.calls.call, done.calls.size, done.calls.count)
    for op, call, size, count in zip(*(column.tolist() for column in columns), strict=True):
        if call in names:
            found.setdefault(op, []).append((names[Call(call)], size * (count or 1)))
    return {op: tuple(calls) for op, calls in found.items()}
