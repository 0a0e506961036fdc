"""The reason why a recorded run ran out of memory: one cause, the numbers behind it, who held what, what would help."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any, Final

import numpy as np

from ullage._public import public
from ullage._units import GIB, text_of_bytes
from ullage.analysis.accumulation import Accumulation, accumulation_of
from ullage.analysis.blocks import block_history_of
from ullage.analysis.cause import Cause, Evidence, cause_of, evidence_of
from ullage.analysis.fidelity import Fidelity, closest_semantics, fidelity_of
from ullage.analysis.growth import StepGrowth, growth_of
from ullage.analysis.pinning import Pin, pins_of, smallest_set
from ullage.analysis.recording import HeldBlock, Recording
from ullage.analysis.remedy import Remedy, estimates_of, remedies_of
from ullage.analysis.sentence import cure_of, headline_of, sentence_of
from ullage.history import Action, History
from ullage.rebuild import UNBOUNDED_BYTES, Rebuilt, program_of
from ullage.report.blocks import BlockHistory

SCHEMA: Final = 2
_REPLAY_DIFFERS: Final = "the replay departs"
_ALL_RESERVED_BEFORE: Final = "all that the run used"
WARNING: Final = (_REPLAY_DIFFERS, _ALL_RESERVED_BEFORE)
"""Beginnings of the notes that weaken what a replay proves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineHolder:
    """A source line and the bytes after rounding that it held at the moment that matters."""

    line: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationPicture:
    """The data that only pictures show."""

    blocks: BlockHistory
    tree: tuple[tuple[tuple[str, ...], int, int], ...]
    """Memory in use at the moment shown: (lines from the outermost to the innermost, bytes, blocks)."""


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of a run; every number in `evidence` is in bytes unless its name says otherwise."""

    source: str
    cause: Cause
    sentence: str
    evidence: dict[str, int]
    failing_line: str | None
    holders: tuple[LineHolder, ...]
    pinning: tuple[Pin, ...]
    pinning_set: tuple[HeldBlock, ...]
    """The smallest set of blocks whose absence would have let the request succeed; each one is needed, as replays
    prove."""
    growth: StepGrowth | None
    accumulation: Accumulation | None
    """Blocks of one line that a loop allocates and keeps; None where growth per step explains them."""
    remedies: tuple[Remedy, ...]
    departures: int
    """Number of operations at which a replay under the run's own settings makes other driver calls than were
    recorded."""
    notes: tuple[str, ...]
    headline: str = ""
    """The verdict in a few words, where it differs from the cause's name."""
    picture: ExplanationPicture | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`, with the schema's version first."""
        return {
            "schema": SCHEMA,
            **asdict(replace(self, picture=None, accumulation=None)),
            "cause": self.cause.value,
            "accumulation": _accumulation_to_json(self.accumulation) if self.accumulation is not None else None,
            "pinning": [found for pin in self.pinning if (found := self._pin_to_json(pin, needed=True))["blocks"]],
            "pinning_set": [_block_to_json(block) for block in self.pinning_set],
            "other_pinned_segments": [
                found for pin in self.pinning if (found := self._pin_to_json(pin, needed=False))["blocks"]
            ],
        }

    def _pin_to_json(self, pin: Pin, *, needed: bool) -> dict[str, Any]:
        """A segment, and those of its blocks that are (or are not) of the set that kept the request out."""
        chosen = {block.key for block in self.pinning_set}
        return {
            "segment": pin.address,
            "size_bytes": pin.size_bytes,
            "free_bytes": pin.free_bytes,
            "largest_free_bytes": pin.largest_free_bytes,
            "blocks": [_block_to_json(block) for block in pin.blocks if (block.key in chosen) is needed],
        }


def _accumulation_to_json(accumulation: Accumulation) -> dict[str, Any]:
    data = asdict(accumulation)
    return {name: value for name, value in data.items() if name not in ("keys", "letting_go")}


def _block_to_json(block: HeldBlock) -> dict[str, Any]:
    return {"address": block.address, "bytes": block.size_bytes, "line": block.line}


def explain(
    history: History,
    *,
    source: str = "",
    semantics: str | None = None,
    alloc_conf: str | None = None,
    capacity_bytes: int | None = None,
    with_picture: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Explanation:
    """Explain a recorded run.

    Args:
        history: the recording of one device.
        source: the name under which it is shown.
        semantics: the allocator's version: one of `ullage.settings.SEMANTICS`; None: inferred from the recording.
        alloc_conf: the settings in force, where the snapshot does not record them.
        capacity_bytes: what the allocator could reserve at most, where no request failed.
        with_picture: whether pictures will be drawn.
        progress: called with a short text for every replay.

    Raises:
        SettingsError: `alloc_conf` cannot be read.
    """
    progress("rebuilding the run")
    assumed = closest_semantics(history, alloc_conf=alloc_conf) if semantics is None else None
    semantics = semantics or assumed
    rebuilt = program_of(history, semantics=semantics, alloc_conf=alloc_conf, capacity_bytes=capacity_bytes)
    recording = Recording.of(history, rebuilt)
    growth = growth_of(recording)
    evidence = evidence_of(recording)
    fidelity = _as_recorded(history, recording.rebuilt, semantics=semantics, alloc_conf=alloc_conf)
    accumulation = None if growth else accumulation_of(recording)
    cause = cause_of(recording, evidence, growth, accumulation)
    pins = tuple(pins_of(recording)) if recording.failing_op is not None else ()
    chosen: tuple[HeldBlock, ...] = ()
    if cause in (Cause.FRAGMENTED, Cause.PINNED_BY_SPLITS):
        progress("looking for what pins the memory")
        chosen = smallest_set(recording, evidence["needed_segment_bytes"])
    remedies = _remedies(recording, evidence, growth, accumulation, progress)
    kept = growth or accumulation
    return Explanation(
        source=source,
        cause=cause,
        sentence=sentence_of(cause, recording, evidence, kept, chosen) + cure_of(cause, remedies, evidence, kept),
        evidence=evidence,
        failing_line=_failing_line(recording),
        holders=_holders(recording),
        pinning=pins,
        pinning_set=chosen,
        growth=growth,
        accumulation=accumulation,
        remedies=tuple(remedies),
        departures=fidelity.departures,
        notes=(*_assumed_version(assumed), *_notes(recording, fidelity, growth, cause)),
        headline=headline_of(cause, recording, evidence),
        picture=_picture(recording) if with_picture else None,
    )


def _remedies(
    recording: Recording,
    evidence: Evidence,
    growth: StepGrowth | None,
    accumulation: Accumulation | None,
    progress: Callable[[str], None],
) -> list[Remedy]:
    is_replayed = recording.rebuilt.is_whole or recording.done.driver_calls or recording.failing_op is not None
    if not len(recording.history) or not is_replayed:
        return []
    remedies = remedies_of(recording, growth, accumulation, progress=progress)
    if accumulation is None:  # of which less would be as full a little later
        sizes = (evidence.get(name, 0) for name in ("missing_bytes", "requested_bytes", "room_bytes"))
        remedies += estimates_of(recording, *sizes)
    return remedies


def _assumed_version(semantics: str | None) -> tuple[str, ...]:
    if semantics is None:
        return ()
    return (f"torch {semantics} is assumed: the replay of its allocator is closest to the recording",)


def _as_recorded(history: History, rebuilt: Rebuilt, *, semantics: str | None, alloc_conf: str | None) -> Fidelity:
    """Compare with the recording, in the room that it had."""
    if not rebuilt.room_is_known:
        rebuilt = program_of(history, semantics=semantics, alloc_conf=alloc_conf)
    return fidelity_of(rebuilt)


def _picture(recording: Recording) -> ExplanationPicture:
    sizes: Counter[tuple[str, ...]] = Counter()
    counts: Counter[tuple[str, ...]] = Counter()
    paths: dict[int, tuple[str, ...]] = {}
    for block in recording.held():
        stack = recording.stack_of(block.key)
        if stack not in paths:
            paths[stack] = recording.path_of_stack(stack)
        sizes[paths[stack]] += block.size_bytes
        counts[paths[stack]] += 1
    shared = sum(1 for _ in takewhile(lambda same: len(set(same)) == 1, zip(*sizes, strict=False)))
    return ExplanationPicture(
        blocks=block_history_of(recording),
        tree=tuple((path[shared:] or path[-1:], size, counts[path]) for path, size in sizes.most_common()),
    )


def _failing_line(recording: Recording) -> str | None:
    if recording.failing_op is None:
        return None
    return recording.line_of(int(recording.program.key[recording.failing_op]))


def _holders(recording: Recording) -> tuple[LineHolder, ...]:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for block in recording.held():
        sizes[block.line] += block.size_bytes
        counts[block.line] += 1
    return tuple(LineHolder(line=line, bytes=size, blocks=counts[line]) for line, size in sizes.most_common())


def _notes(recording: Recording, fidelity: Fidelity, growth: StepGrowth | None, cause: Cause) -> tuple[str, ...]:
    rebuilt = recording.rebuilt
    notes = list(rebuilt.notes)
    if not len(recording.history):
        notes.append(
            "there is no trace, only the state at the end: call torch.cuda.memory._record_memory_history() first"
        )
    elif not fidelity.operations:
        notes.append("nothing was taken from the driver or given back while this was recorded")
    elif not fidelity.departures and not fidelity.address_ties:
        notes.append(
            "replayed under its own settings, the run makes exactly the driver calls that were recorded, at all of "
            f"{fidelity.operations:,} operations"
        )
    elif not fidelity.departures:
        notes.append(
            "replayed under its own settings, the run makes the driver calls that were recorded, at all of "
            f"{fidelity.operations:,} operations; but {fidelity.address_ties:,} times one of several equally large "
            "free blocks was chosen by its address, and the recording does not show which address is lower"
        )
    else:
        notes.append(_why_departures(recording, fidelity))
    if not rebuilt.is_whole:
        notes.append(
            "recording began in the middle: the replay starts with the blocks that were alive then, at their addresses"
        )
    if len(recording.history) and not rebuilt.is_whole and not recording.done.driver_calls:
        notes.append(f"{_ALL_RESERVED_BEFORE} was reserved before recording began: no setting can be tried on it")
    steps = len(recording.step_ops())
    if growth and cause is not Cause.LEAK:
        notes.append(f"every step keeps {text_of_bytes(growth.bytes_per_step)} more, of {growth.line}")
    elif steps and not growth:
        notes.append(
            f"the recording has {steps} step{'s' if steps > 1 else ''}; memory does not grow from step to step"
        )
    elif len(recording.history) and not growth:
        notes.append("no step is marked in the recording, so growth from step to step cannot be measured")
    if growth:
        notes.append(
            "usual reasons for growth: losses or outputs kept without .item() or .detach(), evaluation "
            "without torch.no_grad()"
        )
    failures = int(np.count_nonzero(recording.history.action == Action.OOM))
    if failures > 1:
        notes.append(f"{failures} requests failed; this is about the last one")
    if failures and recording.failing_op is None:
        notes.append("a request failed in the recording; with the given capacity none does")
    elif recording.failing_op is not None and failures:
        notes.append("replays prove what happens up to and including the request that failed, not after it")
    elif recording.failing_op is not None:
        notes.append("the run itself went on; the request fails in a replay with the capacity that was given")
    if rebuilt.room_bytes == UNBOUNDED_BYTES and recording.done.peak.reserved_bytes > 100 * GIB:
        notes.append("the run reserved more than most cards have")
    return tuple(notes)


def _why_departures(recording: Recording, fidelity: Fidelity) -> str:
    """Say at how many operations the replay departs, and what may be behind it."""
    whys = []
    if not recording.rebuilt.is_whole:
        whys.append("recording began in the middle, and how earlier memory was allocated is not known")
    if (recording.history.action == Action.FREE_REQUESTED).any() and recording.program_has_streams:
        whys.append("other streams used blocks, and only the frees show when they had finished")
    if not recording.history.settings:
        whys.append("the settings were not recorded (--alloc-conf)")
    why = "; ".join(whys) or "the run may have had another version (--torch-version) or other settings (--alloc-conf)"
    return (
        f"{_REPLAY_DIFFERS} from the recording at {fidelity.departures:,} of {fidelity.operations:,} operations that "
        f"call the driver: {why}"
    )
