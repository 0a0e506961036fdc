"""Why a recorded run ran out of memory: one cause, the numbers behind it, who held what, and what would have helped."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any, Final

import numpy as np

from ullage._units import GIB, text_of_bytes
from ullage.analysis.cause import Cause, cause_of, evidence_of
from ullage.analysis.fidelity import Fidelity, fidelity_of, semantics_told
from ullage.analysis.growth import Growth, growth_of
from ullage.analysis.pile import Pile, pile_of
from ullage.analysis.pinning import Pin, pins_of, smallest_set
from ullage.analysis.recording import Held, Recording
from ullage.analysis.remedy import Remedy, estimates_of, remedies_of
from ullage.analysis.sentence import cure_of, headline_of, sentence_of
from ullage.analysis.timeline import Timeline, timeline_of
from ullage.history import Action, History
from ullage.rebuild import UNBOUNDED_BYTES, Rebuilt, program_of

SCHEMA: Final = 1
_DEPARTS: Final = "the replay departs"
_NOTHING_TRIED: Final = "all that the run used"
WARNING: Final = (_DEPARTS, _NOTHING_TRIED)
"""How notes begin that take from what is said to be proved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A line and what it held at the moment, in bytes after rounding."""

    line: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What pictures show beside the numbers."""

    timeline: Timeline | None
    tree: tuple[tuple[tuple[str, ...], int, int], ...]
    """What was held at the moment: (lines from the outermost to the innermost, bytes, blocks)."""
    segments: tuple[tuple[int, int, tuple[tuple[int, int, str], ...]], ...]
    """At the moment: (address, bytes, blocks as (offset, bytes, line)), the largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer; every number in `evidence` in bytes unless its name says otherwise."""

    source: str
    cause: Cause
    sentence: str
    evidence: dict[str, int]
    failing_line: str | None
    holders: tuple[Holder, ...]
    pinning: tuple[Pin, ...]
    pinning_set: tuple[Held, ...]
    """Blocks whose end would have let the request through, each of them needed; proved by replay."""
    growth: Growth | None
    pile: Pile | None
    """Blocks of one line that a loop makes and keeps; None where steps tell what grows."""
    remedies: tuple[Remedy, ...]
    departures: int
    """Operations at which a replay under the run's own settings calls the driver otherwise than was recorded."""
    notes: tuple[str, ...]
    headline: str = ""
    """The verdict in a word or two, where it is not the cause's name."""
    picture: Picture | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`, with the schema's version first."""
        return {
            "schema": SCHEMA,
            **asdict(replace(self, picture=None, pile=None)),
            "cause": self.cause.value,
            "pile": _pile_to_json(self.pile) if self.pile is not None else None,
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


def _pile_to_json(pile: Pile) -> dict[str, Any]:
    data = asdict(pile)
    return {name: value for name, value in data.items() if name not in ("keys", "letting_go")}


def _block_to_json(block: Held) -> dict[str, Any]:
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
        history: of one device.
        source: what to call it.
        semantics: the allocator's version: "2.11" (and before) or "2.15"; None: told from the recording.
        alloc_conf: the settings in force, where the snapshot does not tell them.
        capacity_bytes: what the allocator could reserve at most, where no request failed.
        with_picture: whether pictures will be drawn.
        progress: called with a short text for every replay.

    Raises:
        SettingsError: `alloc_conf` cannot be read.
    """
    progress("rebuilding the run")
    told = semantics_told(history, alloc_conf=alloc_conf) if semantics is None else None
    semantics = semantics or told
    rebuilt = program_of(history, semantics=semantics, alloc_conf=alloc_conf, capacity_bytes=capacity_bytes)
    recording = Recording.of(history, rebuilt)
    growth = growth_of(recording)
    evidence = evidence_of(recording)
    fidelity = _as_recorded(history, recording.rebuilt, semantics=semantics, alloc_conf=alloc_conf)
    pile = None if growth else pile_of(recording)
    cause = cause_of(recording, evidence, growth, pile)
    pins = tuple(pins_of(recording)) if recording.failing_op is not None else ()
    chosen: tuple[Held, ...] = ()
    if cause in (Cause.FRAGMENTED, Cause.PINNED_BY_SPLITS):
        progress("looking for what pins the memory")
        chosen = smallest_set(recording, evidence["needed_segment_bytes"])
    remedies: list[Remedy] = []
    if len(history) and (rebuilt.is_whole or recording.done.driver_calls or recording.failing_op is not None):
        remedies = remedies_of(recording, growth, pile, progress=progress)
        if pile is None:  # of which less would be as full a little later
            remedies += estimates_of(
                recording,
                evidence.get("missing_bytes", 0),
                evidence.get("requested_bytes", 0),
                evidence.get("room_bytes", 0),
            )
    kept = growth or pile
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
        pile=pile,
        remedies=tuple(remedies),
        departures=fidelity.departures,
        notes=(*_told(told), *_notes(recording, fidelity, growth, cause)),
        headline=headline_of(cause, recording, evidence),
        picture=_picture(recording) if with_picture else None,
    )


def _told(semantics: str | None) -> tuple[str, ...]:
    if semantics is None:
        return ()
    return (f"the allocator is taken for that of torch {semantics}, whose replay is nearest to what was recorded",)


def _as_recorded(history: History, rebuilt: Rebuilt, *, semantics: str | None, alloc_conf: str | None) -> Fidelity:
    """Compare with the recording, in the room that it had."""
    if not rebuilt.room_is_told:
        rebuilt = program_of(history, semantics=semantics, alloc_conf=alloc_conf)
    return fidelity_of(rebuilt)


def _picture(recording: Recording) -> Picture:
    sizes: Counter[tuple[str, ...]] = Counter()
    counts: Counter[tuple[str, ...]] = Counter()
    paths: dict[int, tuple[str, ...]] = {}
    inside: dict[int, list[tuple[int, int, str]]] = {}
    blocks = recording.moment.blocks
    for block in recording.held():
        stack = recording.stack_of(block.key)
        if stack not in paths:
            paths[stack] = recording.path_of_stack(stack)
        sizes[paths[stack]] += block.size_bytes
        counts[paths[stack]] += 1
        start = int(blocks.segment_address[block.segment])
        inside.setdefault(block.segment, []).append((block.address - start, block.size_bytes, block.line))
    shared = sum(1 for _ in takewhile(lambda same: len(set(same)) == 1, zip(*sizes, strict=False)))
    segments = zip(blocks.segment_address.tolist(), blocks.segment_size.tolist(), strict=True)
    drawn = [(address, size, tuple(inside.get(index, ()))) for index, (address, size) in enumerate(segments)]
    return Picture(
        timeline=timeline_of(recording),
        tree=tuple((path[shared:] or path[-1:], size, counts[path]) for path, size in sizes.most_common()),
        segments=tuple(sorted(drawn, key=lambda segment: -segment[1])),
    )


def _failing_line(recording: Recording) -> str | None:
    if recording.failing_op is None:
        return None
    return recording.line_of(int(recording.program.key[recording.failing_op]))


def _holders(recording: Recording) -> tuple[Holder, ...]:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for block in recording.held():
        sizes[block.line] += block.size_bytes
        counts[block.line] += 1
    return tuple(Holder(line=line, bytes=size, blocks=counts[line]) for line, size in sizes.most_common())


def _notes(recording: Recording, fidelity: Fidelity, growth: Growth | None, cause: Cause) -> tuple[str, ...]:
    rebuilt = recording.rebuilt
    notes = list(rebuilt.notes)
    if not len(recording.history):
        notes.append(
            "there is no trace, only the state at the end: call torch.cuda.memory._record_memory_history() first"
        )
    elif not fidelity.operations:
        notes.append("nothing was taken from the driver or given back while this was recorded")
    elif not fidelity.departures:
        notes.append(
            "replayed under its own settings the run takes from the driver and gives back exactly what was recorded, "
            f"at all of {fidelity.operations:,} operations"
        )
    else:
        notes.append(_why_departures(recording, fidelity))
    if not rebuilt.is_whole:
        notes.append("recording began in the middle: what was alive then is there from the start, at its place")
    if len(recording.history) and not rebuilt.is_whole and not recording.done.driver_calls:
        notes.append(f"{_NOTHING_TRIED} was reserved before recording began: no setting can be tried on it")
    steps = len(recording.step_ops())
    if growth and cause is not Cause.LEAK:
        notes.append(f"every step keeps {text_of_bytes(growth.bytes_per_step)} more, of {growth.line}")
    elif steps and not growth:
        notes.append(f"{steps} step{'s' if steps > 1 else ''} ended in the recording; memory does not grow with each")
    elif len(recording.history) and not growth:
        notes.append("no step is marked in the recording, so that growth from step to step cannot be told")
    if growth:
        notes.append("what mostly grows: losses or outputs kept without .item() or .detach(), and evaluation with grad")
    failures = int(np.count_nonzero(recording.history.action == Action.OOM))
    if failures > 1:
        notes.append(f"{failures} requests failed; this is about the last one")
    if failures and recording.failing_op is None:
        notes.append("a request failed in the recording; in the room that was given none does")
    elif recording.failing_op is not None and failures:
        notes.append("what a replay proves holds up to and including the request that failed")
    elif recording.failing_op is not None:
        notes.append("the run itself went on; the request fails in a replay with the capacity that was given")
    if rebuilt.room_bytes == UNBOUNDED_BYTES and recording.done.peak.reserved_bytes > 100 * GIB:
        notes.append("the run reserved more than most cards have")
    return tuple(notes)


def _why_departures(recording: Recording, fidelity: Fidelity) -> str:
    """Say at how many operations the replay departs, and what may be behind it."""
    whys = []
    if not recording.rebuilt.is_whole:
        whys.append("recording began in the middle, and how the memory of before came about is not known")
    if (recording.history.action == Action.FREE_REQUESTED).any() and recording.program_has_streams:
        whys.append("other streams used blocks, and when they had ended is told only by the frees")
    if not recording.history.settings:
        whys.append("the settings were not recorded (--alloc-conf)")
    why = "; ".join(whys) or "it may be of another version (--torch-version) or under other settings (--alloc-conf)"
    return (
        f"{_DEPARTS} from the recording at {fidelity.departures:,} of {fidelity.operations:,} operations that "
        f"call the driver: {why}"
    )
