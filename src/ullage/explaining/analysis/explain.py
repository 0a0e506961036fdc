"""Explains a recorded run: why it ran out of memory, what held the memory, and what would have helped."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from itertools import takewhile
from typing import Any, ClassVar, Final

from ullage.base.public import public
from ullage.base.units import BOGUS_BYTES
from ullage.explaining.analysis.assumption import Assumptions, closest
from ullage.explaining.analysis.blocks import block_history_of
from ullage.explaining.analysis.card import RecordedCard
from ullage.explaining.analysis.cause import Cause, Evidence, cause_of, evidence_of
from ullage.explaining.analysis.contradiction import contradiction_of, sentence_of_contradiction
from ullage.explaining.analysis.fidelity import Fidelity, fidelity_of
from ullage.explaining.analysis.growth import Accumulation, StepGrowth, accumulation_of, growth_of
from ullage.explaining.analysis.holder import LineHolder, StreamMemory, holders_of, memory_by_stream
from ullage.explaining.analysis.label import LabelHolder, label_holders
from ullage.explaining.analysis.note import notes_of
from ullage.explaining.analysis.pinned import PinnedUse, pinned_use_of
from ullage.explaining.analysis.pinning import Pin, pins_of, smallest_set
from ullage.explaining.analysis.recording import HeldBlock, Recording
from ullage.explaining.analysis.remedy import Remedy, RemedySearch, estimates_of, higher_limit
from ullage.explaining.analysis.role import RoleColumns, RoleShare, role_shares, roles_of
from ullage.explaining.analysis.role.share import advice_of
from ullage.explaining.analysis.sentence import cure_of, free_when_refused, headline_of, sentence_of, went_on
from ullage.recorded.history import History
from ullage.recorded.rebuild import Rebuilt
from ullage.report.answer import Answer
from ullage.report.blocks import BlockHistory

SCHEMA: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The part of an explanation that describes a run started with `ullage run`."""

    name: str
    """The name of the run folder."""
    evidence: str | None
    """The path of the folder that the explanation reads. None if the run wrote no folder."""
    summary: tuple[str, ...]
    """The summary lines that `ullage run` prints when the run ends."""
    remarks: tuple[str, ...]
    """Sentences about the failure. They name the failed process, the training step, the source line and so on."""
    beside: int = 0
    """The number of runs in the given folder. It is 0 if the given folder is itself a run."""

    def to_json(self) -> dict[str, Any]:
        """Return this summary as a dict for the JSON output."""
        if self.evidence is None:
            return {"summary": list(self.summary)}
        return {"run": {"evidence": self.evidence, "summary": list(self.summary)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationPicture:
    """The data that is needed only to draw an explanation."""

    blocks: BlockHistory
    tree: tuple[tuple[tuple[str, ...], int, int], ...]
    """The allocated memory by call stack. Each tuple has the source lines (outermost first), the bytes, and the number
    of blocks.
    """


@public
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation(Answer):
    """The explanation of a recorded run. Values in `evidence` are in bytes unless their name says otherwise."""

    described_in: ClassVar[str] = "ullage.explaining.analysis.describe"

    source: str
    cause: Cause
    sentence: str
    evidence: dict[str, int]
    failing_line: str | None = None
    holders: tuple[LineHolder, ...] = ()
    pinning: tuple[Pin, ...] = ()
    pinning_set: tuple[HeldBlock, ...] = ()
    """The smallest set of blocks that caused the failure by fragmentation."""
    growth: StepGrowth | None = None
    accumulation: Accumulation | None = None
    """The blocks that a loop allocates and never frees, or None."""
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()
    fidelity: Fidelity | None = None
    """The comparison of the recording with a simulation of the same run. None for an error log."""
    device: int | None = None
    """The device index of the explained GPU. None for an error log."""
    cards: tuple[RecordedCard, ...] = ()
    """All GPUs that the snapshot shows in use. Empty if only one is in use."""
    roles: tuple[RoleShare, ...] = ()
    """The memory by role, such as gradients or activations, largest first. Empty if no stacks were recorded."""
    streams: tuple[StreamMemory, ...] = ()
    """The memory of each CUDA stream and private pool when the allocation failed, or at the peak."""
    labels: tuple[LabelHolder, ...] = ()
    """The memory by label, largest first. Empty if the program gave its memory no labels."""
    pinned: PinnedUse | None = None
    """The pinned host memory of the process. None if it was not recorded."""
    others: tuple["Explanation", ...] = ()
    """The explanations for the GPUs other than GPU `device`. Empty unless the user asked for all GPUs."""
    headline: str = ""
    """The result in a few words. If empty, the heading of the cause is used."""
    picture: ExplanationPicture | None = None
    run: RunSummary | None = None
    """The summary of the explained run folder. None if a single file is explained."""

    def _shown(self) -> Sequence[Answer]:
        return (self, *self.others)

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as plain data for `json.dumps`."""
        plain = asdict(replace(self, picture=None, accumulation=None, others=(), run=None))
        own = {field.name for field in fields(Explanation)} - {"run"}
        return {
            "schema": SCHEMA,
            **{name: value for name, value in plain.items() if name in own},
            "cause": self.cause.value,
            "others": [other.to_json() for other in self.others],
            "accumulation": _accumulation_to_json(self.accumulation) if self.accumulation is not None else None,
            "pinning": [found for pin in self.pinning if (found := self._pin_to_json(pin, needed=True))["blocks"]],
            "pinning_set": [_block_to_json(block) for block in self.pinning_set],
            "other_pinned_segments": [
                found for pin in self.pinning if (found := self._pin_to_json(pin, needed=False))["blocks"]
            ],
            **(self.run.to_json() if self.run is not None else {}),
        }

    def _pin_to_json(self, pin: Pin, *, needed: bool) -> dict[str, Any]:
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
    assumed: Assumptions | None = None,
    cards: Sequence[RecordedCard] = (),
    with_picture: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Explanation:
    """Return the explanation of a recorded run.

    Args:
        history: the recording of one device.
        source: the name of the recording in reports.
        semantics: the allocator version, from `settings.SEMANTICS`; None: inferred from the recording.
        alloc_conf: the run's PYTORCH_CUDA_ALLOC_CONF, if the snapshot does not contain it.
        capacity_bytes: the most bytes that the allocator can reserve, for a recording without a failed request.
        assumed: the properties that the recording lacks, if `assumption.closest` has already found them.
        cards: all GPUs of the snapshot, including this one.
        with_picture: whether the explanation includes data for pictures.
        progress: called with a short text before every replay.

    Raises:
        SettingsError: `alloc_conf` cannot be parsed.
    """
    progress("reconstructing the run")
    history = history if history.has_requests else history.without_trace()
    assumed = assumed or closest(history, semantics=semantics, alloc_conf=alloc_conf, capacity_bytes=capacity_bytes)
    recording = assumed.recording_of(history, semantics=semantics, alloc_conf=alloc_conf, capacity_bytes=capacity_bytes)
    evidence = evidence_of(recording)
    # Replays release the GIL, so this analysis of the recording itself runs at the same time.
    with RemedySearch(recording, progress=progress) as search, ThreadPoolExecutor(1) as pinning:
        in_its_room = recording.rebuilt
        if not in_its_room.room_is_known:
            in_its_room = assumed.program_of(history, semantics=semantics, alloc_conf=alloc_conf)
        fidelity = _fidelity(recording, in_its_room)
        contradiction = contradiction_of(history, recording.rebuilt, is_exact=fidelity.is_exact)
        cause, growth, accumulation = _judged(recording, evidence, contradiction)
        chosen_later = pinning.submit(_pinning_set, recording, cause, evidence, progress)
        pins = tuple(pins_of(recording)) if recording.failing_op is not None else ()
        kept, holders = growth or accumulation, holders_of(recording)
        roles = roles_of(recording)
        shares = role_shares(recording, roles)
        chosen = chosen_later.result()
        remedies = [] if contradiction is not None else _remedies(recording, evidence, growth, accumulation, search)
    if contradiction is not None:
        sentence = _contradicted(contradiction)
    else:
        advice = advice_of(shares) if cause is Cause.DID_NOT_FAIL and not recording.capacity_is_given else ""
        sentence = sentence_of(cause, recording, evidence, kept, chosen, holders) + advice
        sentence += went_on(recording) + cure_of(cause, remedies, evidence, kept)
    return Explanation(
        source=source,
        cause=cause,
        sentence=sentence,
        evidence=evidence,
        failing_line=_failing_line(recording),
        holders=holders,
        pinning=pins,
        pinning_set=chosen,
        growth=growth,
        accumulation=accumulation,
        remedies=tuple(remedies),
        notes=notes_of(recording, fidelity, growth, cause, assumed_version=assumed.semantics),
        fidelity=fidelity,
        device=history.device,
        cards=tuple(cards) if len(cards) > 1 else (),
        roles=shares,
        streams=memory_by_stream(recording),
        labels=label_holders(recording),
        pinned=pinned_use_of(history),
        headline=headline_of(cause, recording, evidence, shares),
        picture=_picture(recording, roles if shares else None) if with_picture else None,
    )


# With any other capacity, the recording and the replay would differ.
def _fidelity(recording: Recording, in_its_room: Rebuilt) -> Fidelity:
    is_same = in_its_room.room_bytes == recording.rebuilt.room_bytes and recording.is_of_everything
    return fidelity_of(recording.history, in_its_room, recording.done if is_same else None)


def _judged(
    recording: Recording, evidence: Evidence, contradiction: str | None
) -> tuple[Cause, StepGrowth | None, Accumulation | None]:
    if contradiction is not None:
        return Cause.CANNOT_TELL, None, None
    growth = growth_of(recording)
    accumulation = None if growth else accumulation_of(recording)
    return cause_of(recording, evidence, growth, accumulation), growth, accumulation


def _contradicted(contradiction: str) -> str:
    said = sentence_of_contradiction(contradiction)
    return f"{said[0].upper()}{said[1:]}. (A recording that was stopped and resumed has gaps of this kind.)"


def _pinning_set(
    recording: Recording, cause: Cause, evidence: Evidence, progress: Callable[[str], None]
) -> tuple[HeldBlock, ...]:
    if cause not in (Cause.FRAGMENTED, Cause.PINNED_BY_SPLITS):
        return ()
    progress("searching for the blocks that pin memory")
    return smallest_set(recording, evidence["needed_segment_bytes"])


def _remedies(
    recording: Recording,
    evidence: Evidence,
    growth: StepGrowth | None,
    accumulation: Accumulation | None,
    search: RemedySearch,
) -> list[Remedy]:
    if not search.is_of_a_replay:
        return []
    remedies = search.best_first(growth, accumulation)
    asked = evidence.get("requested_bytes", 0)
    if recording.refused_bytes and not recording.rebuilt.settings.expandable_segments:
        remedies.append(higher_limit(free_when_refused(evidence)))
    elif (
        accumulation is None and 0 <= asked <= BOGUS_BYTES
    ):  # an accumulation would fill less memory just as well, a little later
        sizes = (evidence.get(name, 0) for name in ("missing_bytes", "requested_bytes", "room_bytes"))
        remedies += estimates_of(recording, *sizes)
    return remedies


def _picture(recording: Recording, roles: RoleColumns | None) -> ExplanationPicture:
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
        blocks=block_history_of(recording, roles),
        tree=tuple((path[shared:] or path[-1:], size, counts[path]) for path, size in sizes.most_common()),
    )


def _failing_line(recording: Recording) -> str | None:
    if recording.failing_op is None:
        return None
    key = int(recording.program.key[recording.failing_op])
    return recording.line_of(key) if recording.stack_of(key) >= 0 else None
