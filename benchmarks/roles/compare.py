"""What `ullage explain` says of the blocks at a peak beside what `ullage predict` knows of them, in bytes."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np

from ullage.base.block_role import Role
from ullage.explaining.analysis.assumption import closest
from ullage.explaining.analysis.recording import Recording, cut
from ullage.explaining.analysis.role import RoleColumns, Sureness, roles_of
from ullage.recorded.history import Action, History
from ullage.recorded.snapshot.snapshot import load_snapshot


class Recorded(Enum):
    """How much of a run is recorded."""

    WHOLE = "the whole run"
    UNTIL_THE_PEAK = "ends at the peak"
    FROM_THE_SECOND_STEP = "begins with the second step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One workload: bytes by what predict knows, what explain says, and how sure it is."""

    name: str
    known_bytes: int
    """The peak as predict measured it."""
    found: Counter[tuple[Role, Role, Sureness]]

    @property
    def peak_bytes(self) -> int:
        """The bytes that were compared."""
        return sum(self.found.values())

    @property
    def right_bytes(self) -> int:
        """Bytes of which both say the same."""
        return sum(size for (known, said, _), size in self.found.items() if known == said)

    def wrong(self) -> Counter[tuple[Role, Role]]:
        """Bytes by what predict knows and explain says, where these differ."""
        sizes: Counter[tuple[Role, Role]] = Counter()
        for (known, said, _), size in self.found.items():
            if known != said:
                sizes[known, said] += size
        return sizes


def compare(name: str, folder: Path, recorded: Recorded = Recorded.WHOLE) -> Compared | None:
    """Compare one workload that `collect` has run; None where the peak is not in what is recorded."""
    truth = json.loads((folder / f"{name}.json").read_text())
    history = max(load_snapshot(folder / f"{name}.pickle").devices.values(), key=len)
    recording = recording_of(history)
    peak = recording.done.peak_allocated_op
    failing = -1
    if recorded is Recorded.UNTIL_THE_PEAK:
        # As if the request at the peak had failed: so it is not among what is held.
        failing = int(recording.program.key[peak])
        recording = replace(recording, program=cut(recording.program, peak + 1), failing_op=peak)
    elif recorded is Recorded.FROM_THE_SECOND_STEP:
        row = second_step(recording)
        if row is None or int(recording.rebuilt.row_of_op[peak]) <= row:
            return None
        recording = recording_of(begun_at(history, row))
    known = {(address, size): Role(role) for address, size, role in truth["blocks"]}
    return Compared(name=name, known_bytes=truth["peak_bytes"], found=both(recording, known, failing))


def both(
    recording: Recording, known: dict[tuple[int, int], Role], failing: int
) -> Counter[tuple[Role, Role, Sureness]]:
    """Add up what is held by both answers; a block that predict does not know counts as told wrong."""
    roles: RoleColumns = roles_of(recording)
    found: Counter[tuple[Role, Role, Sureness]] = Counter()
    for block in recording.held():
        if block.key == failing >= 0:
            continue
        role = known.get((block.address, block.size_bytes), Role.ROUNDING)
        said = (
            (roles.role_of(block.key), roles.sureness_of(block.key))
            if block.key >= 0
            else (Role.UNKNOWN, Sureness.GUESS)
        )
        found[role, *said] += block.size_bytes
    return found


def recording_of(history: History) -> Recording:
    assumed = closest(history, semantics=None, alloc_conf=None)
    return Recording.of(history, assumed.program_of(history, semantics=None, alloc_conf=None))


def second_step(recording: Recording) -> int | None:
    """The entry with which the second step begins: the first allocation after the first step that the optimizer ended,
    or after the first backward pass."""
    table = recording.history.stacks.table
    starts, frames = recording.history.stacks.starts, recording.history.stacks.frames
    inside = [
        frame.name in ("_call_impl", "_engine_run_backward", "_make_grads", "wrapper", "forward") for frame in table
    ]
    stacks = recording.history.stack
    seen_backward = False
    for row in np.flatnonzero(recording.history.action == Action.ALLOC).tolist():
        stack = int(stacks[row])
        names = frames[starts[stack] : starts[stack + 1]].tolist() if stack >= 0 else []
        if not names:
            seen_backward = True
        elif seen_backward and not any(inside[name] for name in names):
            return row
    return None


def begun_at(history: History, row: int) -> History:
    """The same recording without what was before an entry, as if it had been begun there."""
    labels = history.labels
    columns = {
        name: getattr(history, name)[row:] for name in ("action", "address", "size", "stream", "time_us", "stack")
    }
    seen = set(columns["address"][columns["action"] == Action.ALLOC].tolist())
    segments = tuple(
        replace(
            segment,
            blocks=tuple(block if block.address in seen else replace(block, stack=-1) for block in segment.blocks),
        )
        for segment in history.segments
    )
    kept = {name: getattr(labels, name)[row:] for name in ("metadata", "context", "pool")}
    return replace(history, segments=segments, labels=replace(labels, **kept), **columns)
