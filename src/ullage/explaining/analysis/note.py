"""Writes the notes of an explanation. They say what was inferred, what the recording lacks, and how reliable the
simulation is.
"""

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

_REPLAY_DIFFERS: Final = "the replay differs"
_ALL_RESERVED_BEFORE: Final = "all memory of the run"
_MOST_RESERVED_BEFORE: Final = "most of the reserved memory"
_HISTORY_FULL: Final = "PyTorch's memory history was full"
WARNING: Final = (_HISTORY_FULL, _REPLAY_DIFFERS, _ALL_RESERVED_BEFORE, _MOST_RESERVED_BEFORE)
"""The words that begin each note about unreliable simulation results."""
_LEAST_LIMIT: Final = 1000
MOST_OF_IT: Final = 0.9
"""A fraction of peak reserved memory. If more was reserved before recording began, simulations are unreliable."""


def notes_of(
    recording: Recording,
    fidelity: Fidelity,
    growth: StepGrowth | None,
    cause: Cause,
    *,
    assumed_version: str | None,
) -> tuple[str, ...]:
    """Return the notes of an explanation, one sentence each. `assumed_version` is the torch version if it had to be
    inferred.
    """
    return (
        *_assumptions(recording, assumed_version),
        *_comparison(recording, fidelity),
        *_beginning(recording),
        *_steps(recording, growth, cause),
        *_failures(recording),
    )


def _assumptions(recording: Recording, assumed_version: str | None) -> Iterator[str]:
    if assumed_version is not None:
        yield f"assumed: torch {assumed_version}, whose allocator reproduces the recording most closely"
    yield from recording.rebuilt.notes
    if recording.history.unknown_keys:
        yield f"the file contains what this version of ullage ignores: {', '.join(recording.history.unknown_keys)}"
    if recording.rebuilt.room_bytes == UNBOUNDED_BYTES and recording.done.peak.reserved_bytes > 100 * GIB:
        yield "the run reserved more memory than most GPUs have"


def _comparison(recording: Recording, fidelity: Fidelity) -> Iterator[str]:
    if not len(recording.history):
        yield (
            "the recording has no memory requests, only the final state: call "
            "torch.cuda.memory._record_memory_history() first"
        )
        return
    places, operations = f"{fidelity.placements:,} allocations", f"{fidelity.operations:,} operations"
    if not fidelity.is_exact:
        yield _why_it_differs(recording, fidelity)
    elif fidelity.operations:
        yield (
            "a replay under the run's own settings reproduces the recording exactly: the driver calls of all "
            f"{operations} that make any, and the addresses of all {places}"
        )
    else:
        yield (
            f"a replay under the run's own settings reproduces the addresses of all {places}; the recording has no "
            "driver calls to compare"
        )


def _why_it_differs(recording: Recording, fidelity: Fidelity) -> str:
    differs = []
    if fidelity.departures:
        differs.append(f"{fidelity.departures:,} of {fidelity.operations:,} operations that call the driver")
    if fidelity.displaced:
        differs.append(f"the addresses of {fidelity.displaced:,} of {fidelity.placements:,} allocations")
    whys = []
    if not recording.rebuilt.is_whole:
        whys.append("recording began in mid-run, and how earlier memory was allocated is unknown")
    if (recording.history.action == Action.FREE_REQUESTED).any() and recording.program_has_streams:
        whys.append("blocks were used on several streams, and only their frees show when that use ended")
    if not recording.history.settings:
        whys.append("the allocator settings were not recorded (give them with --alloc-conf)")
    if fidelity.address_ties:
        whys.append(f"{fidelity.address_ties:,} times the address decided between equally large free blocks")
    why = (
        "; ".join(whys)
        or "the run may have used another torch version (--torch-version) or other settings (--alloc-conf)"
    )
    return f"{_REPLAY_DIFFERS} from the recording in {' and in '.join(differs)}: {why}"


def reserved_before_share(recording: Recording) -> float:
    """Return the fraction of peak reserved memory that was already reserved when recording began."""
    before = sum(segment.reserved_bytes for segment in recording.program.start)
    return before / max(1, recording.done.peak.reserved_bytes)


def _beginning(recording: Recording) -> Iterator[str]:
    if recording.rebuilt.is_whole:
        return
    entries = len(recording.history)
    is_full = _is_usual_limit(entries)
    if is_full:
        yield (
            f"{_HISTORY_FULL}: it has exactly {entries:,} entries (max_entries), so newer entries have overwritten the "
            "beginning of the run; record again with "
            f"torch.cuda.memory._record_memory_history(max_entries={10 * entries})"
        )
    yield "recording began in mid-run: the replay starts with the blocks that were alive then, at their addresses"
    if not len(recording.history):
        return
    share = reserved_before_share(recording)
    if not recording.done.driver_calls:
        yield f"{_ALL_RESERVED_BEFORE} was reserved before recording began, so no setting can be tried on it"
    elif share >= MOST_OF_IT:
        yield (
            f"{_MOST_RESERVED_BEFORE} ({100 * share:.0f} %) was reserved before recording began, so settings cannot "
            f"be tried on it: {'raise max_entries' if is_full else 'record from the start of the process'}"
        )


def _is_usual_limit(entries: int) -> bool:
    """Return whether a history has as many entries as people set for `max_entries`: a round number or a power of 2."""
    return entries >= _LEAST_LIMIT and (entries % _LEAST_LIMIT == 0 or entries & (entries - 1) == 0)


def _steps(recording: Recording, growth: StepGrowth | None, cause: Cause) -> Iterator[str]:
    steps = len(recording.step_ops())
    if growth:
        if cause is not Cause.LEAK:
            yield f"every step keeps {text_of_bytes(growth.bytes_per_step)} more, {allocated_by(growth.line, 'at')}"
        yield (
            "usual reasons for growth: losses or outputs kept without .item() or .detach(), or evaluation "
            "without torch.no_grad()"
        )
    elif steps:
        yield f"the recording has {steps} step{'s' if steps > 1 else ''}; memory does not grow from step to step"
    elif len(recording.history):
        yield "growth from step to step could not be measured: the recording marks no steps"


def _failures(recording: Recording) -> Iterator[str]:
    failures = int(np.count_nonzero(recording.history.action == Action.OOM))
    several = "a request" if failures == 1 else f"{failures} requests"
    if recording.failing_op is None:
        if failures and recording.capacity_is_given:
            yield f"{several} failed in the recording; none fails with the given capacity"
        return
    if recording.is_recorded_failure:
        if failures > 1:
            yield f"{failures} requests failed; this report explains the last one"
        yield "replays show what happens up to the failed request, not after it"
        return
    if failures:
        yield (
            f"{several} failed in the recording; this report explains the first one that fails with the given capacity"
        )
    yield "the recorded run did not stop here; the request fails in a replay with the given capacity"
