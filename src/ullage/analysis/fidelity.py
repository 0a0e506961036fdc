"""Whether a replay under the run's own settings does what was recorded: the ground under everything that it proves."""

from dataclasses import dataclass

from ullage.allocator.replay import Call, Device, Replay, replay
from ullage.analysis.recording import Recording
from ullage.history import History
from ullage.rebuild import Rebuilt, program_of
from ullage.settings import SEMANTICS, SettingsError

Driven = tuple[tuple[str, int], ...]
"""What is taken from the driver ("take") and given back ("give"), in order, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """Operations at which the driver was called in the recording or in the replay, and at how many they differ."""

    operations: int
    departures: int


def fidelity_of(rebuilt: Rebuilt) -> Fidelity:
    """Replay a program under its own settings and compare every call of the driver with the recorded segment events."""
    done = replay(rebuilt.program, rebuilt.settings, Device(total_bytes=rebuilt.room_bytes), calls=True)
    ours, theirs = driven_by_op(done), rebuilt.recorded_calls
    ops = ours.keys() | theirs.keys()
    return Fidelity(operations=len(ops), departures=sum(ours.get(op) != theirs.get(op) for op in ops))


def semantics_told(history: History, *, alloc_conf: str | None = None) -> str | None:
    """Return the allocator's version whose replay is nearer to the recording; None where that of 2.11 does it exactly.

    Raises:
        SettingsError: `alloc_conf` cannot be read.
    """
    departures = {}
    for semantics in SEMANTICS:
        try:
            rebuilt = program_of(history, semantics=semantics, alloc_conf=alloc_conf)
        except SettingsError:  # an option that this version does not know
            if semantics == SEMANTICS[-1]:
                raise
            continue
        departures[semantics] = fidelity_of(Recording.of(history, rebuilt).rebuilt).departures
        if not departures[semantics]:
            break
    nearest = min(departures, key=departures.__getitem__)
    return nearest if nearest != SEMANTICS[0] else None


def driven_by_op(done: Replay) -> dict[int, Driven]:
    """Return what each operation of a replay with `calls` takes from the driver and gives back."""
    assert done.calls is not None
    names = {Call.MALLOC: "take", Call.MAP: "take", Call.FREE: "give", Call.UNMAP: "give"}
    found: dict[int, list[tuple[str, int]]] = {}
    columns = (done.calls.op, done.calls.call, done.calls.size, done.calls.count)
    for op, call, size, count in zip(*(column.tolist() for column in columns), strict=True):
        if call in names:
            found.setdefault(op, []).append((names[Call(call)], size * (count or 1)))
    return {op: tuple(calls) for op, calls in found.items()}
