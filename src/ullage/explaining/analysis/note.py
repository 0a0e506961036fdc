"""What to know beside the verdict: what was inferred, how much was compared with the recording, what is not in it."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ullage.base.units import GIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.fidelity import Fidelity
from ullage.explaining.analysis.growth import StepGrowth
from ullage.explaining.analysis.recording import Recording, allocated_by
from ullage.recorded.history import Action
from ullage.recorded.rebuild import UNBOUNDED_BYTES

_REPLAY_DIFFERS: Final = "the replay departs"
_ALL_RESERVED_BEFORE: Final = "all that the run used"
_MOST_RESERVED_BEFORE: Final = "most of what is reserved"
WARNING: Final = (_REPLAY_DIFFERS, _ALL_RESERVED_BEFORE, _MOST_RESERVED_BEFORE)
"""Beginnings of the notes that weaken what a replay proves."""
MOST_OF_IT: Final = 0.9
"""The share of the reserved peak that was there before recording began from which on other settings prove little."""


def notes_of(
    recording: Recording,
    fidelity: Fidelity,
    growth: StepGrowth | None,
    cause: Cause,
    *,
    assumed_version: str | None,
) -> tuple[str, ...]:
    """Return the notes, each one sentence; `assumed_version` is the allocator's where the replay tells it."""
    return (
        *_assumptions(recording, assumed_version),
        *_comparison(recording, fidelity),
        *_beginning(recording),
        *_steps(recording, growth, cause),
        *_failures(recording),
    )


def _assumptions(recording: Recording, assumed_version: str | None) -> Iterator[str]:
    if assumed_version is not None:
        yield f"torch {assumed_version} is assumed: the replay of its allocator is closest to the recording"
    yield from recording.rebuilt.notes
    if recording.rebuilt.room_bytes == UNBOUNDED_BYTES and recording.done.peak.reserved_bytes > 100 * GIB:
        yield "the run reserved more than most cards have"


def _comparison(recording: Recording, fidelity: Fidelity) -> Iterator[str]:
    """Say what of the replay was compared with the recording, and what came of it."""
    if not len(recording.history):
        yield (
            "no request for memory was recorded, only the state at the end: call "
            "torch.cuda.memory._record_memory_history() first"
        )
        return
    places, operations = f"{fidelity.placements:,} allocations", f"{fidelity.operations:,} operations"
    if not fidelity.is_exact:
        yield _why_it_differs(recording, fidelity)
    elif fidelity.operations:
        yield (
            "replayed under its own settings, the run is exactly what was recorded: the driver calls of all of "
            f"{operations} that make any, and the addresses of all of {places}"
        )
    else:
        yield (
            f"replayed under its own settings, the run puts all of {places} where they were recorded; nothing was "
            "taken from the driver or given back, so driver calls could not be compared"
        )


def _why_it_differs(recording: Recording, fidelity: Fidelity) -> str:
    """Say how much of the replay differs, and what may be behind it."""
    differs = []
    if fidelity.departures:
        differs.append(f"{fidelity.departures:,} of {fidelity.operations:,} operations that call the driver")
    if fidelity.displaced:
        differs.append(f"the places of {fidelity.displaced:,} of {fidelity.placements:,} allocations")
    whys = []
    if not recording.rebuilt.is_whole:
        whys.append("recording began in the middle, and how earlier memory was allocated is not known")
    if (recording.history.action == Action.FREE_REQUESTED).any() and recording.program_has_streams:
        whys.append("other streams used blocks, and only the frees show when they had finished")
    if not recording.history.settings:
        whys.append("the settings were not recorded (--alloc-conf)")
    if fidelity.address_ties:
        whys.append(
            f"of several equally large free blocks one was chosen by its address, {fidelity.address_ties:,} times"
        )
    why = "; ".join(whys) or "the run may have had another version (--torch-version) or other settings (--alloc-conf)"
    return f"{_REPLAY_DIFFERS} from the recording at {' and at '.join(differs)}: {why}"


def reserved_before_share(recording: Recording) -> float:
    """Return how much of the reserved peak was there before recording began, from 0 to 1."""
    before = sum(segment.reserved_bytes for segment in recording.program.start)
    return before / max(1, recording.done.peak.reserved_bytes)


def _beginning(recording: Recording) -> Iterator[str]:
    if recording.rebuilt.is_whole:
        return
    yield "recording began in the middle: the replay starts with the blocks that were alive then, at their addresses"
    if not len(recording.history):
        return
    share = reserved_before_share(recording)
    if not recording.done.driver_calls:
        yield f"{_ALL_RESERVED_BEFORE} was reserved before recording began: no setting can be tried on it"
    elif share >= MOST_OF_IT:
        yield (
            f"{_MOST_RESERVED_BEFORE} ({100 * share:.0f} %) was reserved before recording began, and stays as it is "
            "under every setting: record from the start of the process to have settings tried on all of it"
        )


def _steps(recording: Recording, growth: StepGrowth | None, cause: Cause) -> Iterator[str]:
    steps = len(recording.step_ops())
    if growth:
        if cause is not Cause.LEAK:
            yield f"every step keeps {text_of_bytes(growth.bytes_per_step)} more, {allocated_by(growth.line, 'of')}"
        yield (
            "usual reasons for growth: losses or outputs kept without .item() or .detach(), evaluation "
            "without torch.no_grad()"
        )
    elif steps:
        yield f"the recording has {steps} step{'s' if steps > 1 else ''}; memory does not grow from step to step"
    elif len(recording.history):
        yield "no step is marked in the recording, so growth from step to step cannot be measured"


def _failures(recording: Recording) -> Iterator[str]:
    failures = int(np.count_nonzero(recording.history.action == Action.OOM))
    several = "a request" if failures == 1 else f"{failures} requests"
    if recording.failing_op is None:
        if failures and recording.capacity_is_given:
            yield f"{several} failed in the recording; with the given capacity none does"
        return
    if recording.is_recorded_failure:
        if failures > 1:
            yield f"{failures} requests failed; this is about the last one"
        yield "replays prove what happens up to and including the request that failed, not after it"
        return
    if failures:
        yield f"{several} failed in the recording; this is about the first one that fails with the given capacity"
    yield "the run itself went on; the request fails in a replay with the capacity that was given"
