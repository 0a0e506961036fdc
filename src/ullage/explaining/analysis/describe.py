"""Turns an explanation of an out-of-memory failure into a printed report."""

from collections import Counter
from collections.abc import Iterator, Sequence

from ullage.base.block_role import Role
from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.explain import Explanation
from ullage.explaining.analysis.holder import LineHolder, StreamMemory
from ullage.explaining.analysis.label import LabelHolder
from ullage.explaining.analysis.note import WARNING
from ullage.explaining.analysis.pinned import PinnedUse
from ullage.explaining.analysis.remedy import Remedy
from ullage.explaining.analysis.role import RoleShare, Sureness
from ullage.report.report import (
    Icicle,
    Meter,
    Remarks,
    Report,
    Section,
    Shares,
    SizedPart,
    Table,
    TableRow,
    Tone,
)
from ullage.report.report import Picture as ReportPicture

_PINS_SHOWN = 8
_HOLDERS_SHOWN = 12
_HOLDERS_IN_SHORT = 4
_HELPS_IN_SHORT = 2
_STREAMS_IN_SHORT = 4
_ROLES_IN_SHORT = 3
# A share of a role's bytes. The report shows a degree of certainty only if at least this share of the bytes has it.
_WORTH_NAMING = 0.02
_OF_THE_RUN = "The recorded run"
_MORE = "All changes, segments and notes: --all, or --html PAGE"


def describe(explanation: Explanation) -> Report:
    """Return the report for an explanation of a snapshot, an error log or a recorded run."""
    if type(explanation) is not Explanation:
        # Imported here because an explanation of a snapshot does not need the patterns of error messages.
        from ullage.explaining.analysis.text.describe import describe_text
        from ullage.explaining.analysis.text.explain import TextExplanation
        from ullage.explaining.analysis.timeline import TimelineExplanation, describe_timeline

        if isinstance(explanation, TimelineExplanation):
            return describe_timeline(explanation)
        assert isinstance(explanation, TextExplanation)
        return describe_text(explanation)
    run = explanation.run
    if run is not None and run.evidence is None:
        return Report(
            headline=explanation.headline,
            tone=Tone.UNSURE,
            subject=explanation.source,
            sentence=explanation.sentence,
            sections=(Remarks(title=_OF_THE_RUN, items=run.summary),),
        )
    beside = (Remarks(title=_OF_THE_RUN, items=run.remarks),) if run is not None and run.remarks else ()
    return Report(
        headline=explanation.headline,
        tone=_tone_of(explanation),
        subject=explanation.source + (f", GPU {explanation.device}" if explanation.cards else ""),
        sentence=explanation.sentence,
        sections=(*_sections(explanation), *beside),
        pictures=tuple(_pictures(explanation)),
        details=tuple(_details(explanation)),
        more=_MORE,
    )


def _tone_of(explanation: Explanation) -> Tone:
    match explanation.cause:
        case Cause.DID_NOT_FAIL if "room_bytes" not in explanation.evidence:
            return Tone.PLAIN
        case Cause.DID_NOT_FAIL:
            evidence = explanation.evidence
            return Tone.GOOD if evidence["peak_reserved_bytes"] <= evidence["room_bytes"] else Tone.BAD
        case Cause.CANNOT_TELL:
            return Tone.UNSURE
        case _:
            return Tone.BAD


def _sections(explanation: Explanation) -> Iterator[Section]:
    if explanation.cards:
        yield _cards(explanation)
    yield _card(explanation)
    if len(explanation.streams) > 1:
        yield _streams(explanation.streams)
    if explanation.remedies:
        yield _helps(explanation) if "requested_bytes" in explanation.evidence else _alternatives(explanation)
    if explanation.holders:
        total = explanation.evidence["allocated_bytes"]
        shown = _shown(explanation.holders)
        yield Shares(
            title=f"Lines of your code that held the {text_of_bytes(total)} allocated",
            total_bytes=total,
            parts=tuple(
                SizedPart(label=holder.line, size_bytes=holder.bytes, remark=_count(holder.blocks, "block"))
                for holder in shown
            ),
            short=_HOLDERS_IN_SHORT,
        )
    if explanation.labels:
        yield _labels(explanation.labels, explanation.evidence["allocated_bytes"])
    if explanation.pinned is not None:
        yield _pinned(explanation.pinned)
    if explanation.roles:
        yield _roles(explanation.roles, explanation.evidence["allocated_bytes"])
    warnings = tuple(note for note in explanation.notes if note.startswith(WARNING))
    if warnings:
        yield Remarks(title="Warnings", items=warnings)


def _details(explanation: Explanation) -> Iterator[Section]:
    if explanation.pinning_set:
        yield _set(explanation)
    if explanation.pinning:
        yield _pins(explanation)
    others = tuple(note for note in explanation.notes if not note.startswith(WARNING))
    if others:
        yield Remarks(title="Notes", items=others)


def _labels(labels: Sequence[LabelHolder], total_bytes: int) -> Shares:
    shown, rest = labels[:_HOLDERS_SHOWN], labels[_HOLDERS_SHOWN:]
    parts = [SizedPart(label=one.label, size_bytes=one.bytes, remark=_count(one.blocks, "block")) for one in shown]
    if rest:
        size, blocks = sum(one.bytes for one in rest), sum(one.blocks for one in rest)
        parts.append(SizedPart(label=f"({len(rest)} more labels)", size_bytes=size, remark=_count(blocks, "block")))
    return Shares(
        title="The same memory by label, as your program annotated it",
        total_bytes=total_bytes,
        parts=tuple(parts),
        short=_HOLDERS_IN_SHORT,
    )


def _pinned(pinned: PinnedUse) -> Shares:
    parts = [
        SizedPart(label=holder.line, size_bytes=holder.bytes, remark=_count(holder.blocks, "block"))
        for holder in _shown(pinned.lines)
    ]
    if pinned.cached_bytes:
        parts.append(SizedPart(label="(cached by PyTorch)", size_bytes=pinned.cached_bytes))
    total = pinned.allocated_bytes + pinned.cached_bytes
    return Shares(
        title=f"Pinned host memory at the end: {text_of_bytes(total)}, at most {text_of_bytes(pinned.peak_bytes)}",
        total_bytes=total,
        parts=tuple(parts),
        short=_HOLDERS_IN_SHORT,
    )


def _roles(roles: Sequence[RoleShare], total_bytes: int) -> Shares:
    return Shares(
        title="What the memory was used for, inferred from stacks, lifetimes and sizes",
        total_bytes=total_bytes,
        parts=tuple(
            SizedPart(label=share.role.label, size_bytes=share.bytes, remark=_sureness(share)) for share in roles
        ),
        short=_ROLES_IN_SHORT,
    )


def _sureness(share: RoleShare) -> str:
    if share.role is Role.UNKNOWN:
        return "not known"
    parts = zip(Sureness, (share.certain_bytes, share.likely_bytes, share.guessed_bytes), strict=True)
    known = [(sureness, size) for sureness, size in parts if size >= _WORTH_NAMING * share.bytes]
    if len(known) == 1:
        return known[0][0].word
    return ", ".join(f"{text_of_bytes(size)} {sureness.word}" for sureness, size in known)


def _shown(holders: Sequence[LineHolder]) -> list[LineHolder]:
    rest = holders[_HOLDERS_SHOWN:]
    if len(rest) < 2:
        return list(holders)
    others = LineHolder(
        line=f"({len(rest)} more lines)",
        bytes=sum(holder.bytes for holder in rest),
        blocks=sum(holder.blocks for holder in rest),
    )
    return [*holders[:_HOLDERS_SHOWN], others]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _cards(explanation: Explanation) -> Table:
    rows = []
    for card in explanation.cards:
        failed = text_of_bytes(card.failed_bytes) if card.failed_bytes is not None else "none"
        is_this = card.device == explanation.device
        rows.append(
            TableRow(
                cells=(
                    f"GPU {card.device}",
                    failed,
                    text_of_bytes(card.peak_reserved_bytes),
                    text_of_bytes(card.allocated_bytes),
                    "this report" if is_this else f"--device {card.device}",
                ),
                tone=Tone.BAD if card.failures else Tone.PLAIN,
            )
        )
    return Table(
        title=f"The {len(rows)} GPUs in this snapshot",
        columns=("GPU", "failed request", "peak reserved", "allocated at the end", ""),
        rows=tuple(rows),
    )


def _streams(streams: Sequence[StreamMemory]) -> Table:

    def name(memory: StreamMemory) -> str:
        stream = f"stream {memory.stream:#x}" if memory.stream else "default stream"
        return f"{stream}, private pool {memory.pool}" if memory.pool else stream

    return Table(
        title="Memory by stream and pool; free memory serves only requests of the same stream and pool",
        columns=("stream", "reserved", "allocated", "freed, pending"),
        rows=tuple(
            TableRow(
                cells=(
                    name(memory),
                    *(
                        text_of_bytes(size)
                        for size in (memory.reserved_bytes, memory.allocated_bytes, memory.pending_bytes)
                    ),
                ),
                is_detail=index >= _STREAMS_IN_SHORT,
            )
            for index, memory in enumerate(streams)
        ),
        instead=(f"{len(streams) - _STREAMS_IN_SHORT} smaller rows: --all",)
        if len(streams) > _STREAMS_IN_SHORT
        else (),
    )


def _card(explanation: Explanation) -> Meter:
    evidence = explanation.evidence
    parts = [SizedPart(label="allocated", size_bytes=evidence["allocated_bytes"], remark="by tensors")]
    if evidence["pending_bytes"]:
        streams = sorted({f"{memory.stream:#x}" for memory in explanation.streams if memory.pending_bytes})
        remark = f"other streams may still use it; allocated on stream {', '.join(streams)}" if streams else ""
        parts.append(SizedPart(label="freed, pending", size_bytes=evidence["pending_bytes"], remark=remark))
    largest = evidence.get("largest_free_block_bytes")
    cached = f"largest free block: {text_of_bytes(largest)}" if largest else ""
    parts.append(SizedPart(label="cached", size_bytes=evidence["cached_bytes"], remark=cached))
    when = "when the request failed" if "requested_bytes" in evidence else "at the peak"
    place = f" at {explanation.failing_line}" if explanation.failing_line else ""
    has_room = sum(part.size_bytes for part in parts) <= evidence.get(
        "room_bytes", -1
    )  # a capacity given by the user may be too small
    return Meter(
        title=f"The allocator's memory {when}{place}",
        total_bytes=evidence["room_bytes" if has_room else "reserved_bytes"],
        total_label="capacity" if has_room else "reserved",
        parts=tuple(parts),
        rest_label=("below the limit" if "refused_bytes" in evidence else "free on the GPU") if has_room else "",
    )


def _helps(explanation: Explanation) -> Table:
    shown = [remedy for remedy in explanation.remedies if remedy.fits][:_HELPS_IN_SHORT]
    return Table(
        title="What would have helped: replays of this run with one change each",
        columns=("change", "helps", "peak reserved", "driver calls"),
        rows=tuple(_remedy(remedy, is_detail=remedy.proved and remedy not in shown) for remedy in explanation.remedies),
        instead=tuple(_instead(explanation.remedies, shown)),
    )


def _instead(remedies: Sequence[Remedy], shown: Sequence[Remedy]) -> Iterator[str]:
    others = [remedy for remedy in remedies if remedy.fits and remedy not in shown]
    if others:
        yield f"{len(others)} more {'change helps' if len(others) == 1 else 'changes help'}: {_names(others)}"
    fail = [remedy for remedy in remedies if remedy.proved and not remedy.fits]
    if fail:
        yield f"{len(fail)} {'change does' if len(fail) == 1 else 'changes do'} not help: {_names(fail)}"


def _names(remedies: Sequence[Remedy]) -> str:
    values: dict[str, list[str]] = {}
    for remedy in remedies:
        name, colon, value = remedy.name.partition(":") if remedy.setting else (remedy.short_name, "", "")
        values.setdefault(name + colon, []).append(value)
    return ", ".join(name + "|".join(several) for name, several in values.items())


def _remedy(remedy: Remedy, *, is_detail: bool) -> TableRow:
    if not remedy.proved:
        return TableRow(cells=(f"{remedy.name} ({remedy.remark})", "estimate", "", ""), tone=Tone.QUIET)
    return TableRow(
        cells=(remedy.name, "yes" if remedy.fits else "no", *_costs(remedy)),
        tone=Tone.GOOD if remedy.fits else Tone.BAD,
        is_detail=is_detail,
    )


def _costs(remedy: Remedy) -> tuple[str, str]:
    calls = f"{remedy.driver_calls:,} ({remedy.more_calls or 0:+,})" if remedy.driver_calls is not None else ""
    return text_of_bytes(remedy.peak_reserved_bytes or 0), calls


def _alternatives(explanation: Explanation) -> Section:
    now = explanation.evidence["peak_reserved_bytes"]
    if all(remedy.fits and remedy.peak_reserved_bytes == now for remedy in explanation.remedies):
        return Remarks(
            title="Reserved memory with other settings",
            items=(
                f"No change lowers the {text_of_bytes(now)} reserved ({len(explanation.remedies)} replays): "
                f"{_names(explanation.remedies)}",
            ),
        )
    ran = TableRow(cells=("none (as recorded)", text_of_bytes(now), f"{explanation.evidence['driver_calls']:,}"))
    rows = [
        TableRow(
            cells=(remedy.name if remedy.fits else f"{remedy.name}: does not fit", *_costs(remedy)),
            tone=_tone(remedy, now),
        )
        for remedy in explanation.remedies
    ]
    return Table(
        title="Reserved memory with other settings: replays of this run with one change each",
        columns=("change", "peak reserved", "driver calls"),
        rows=(ran, *rows),
    )


def _tone(remedy: Remedy, now: int) -> Tone:
    if not remedy.fits:
        return Tone.BAD
    return Tone.GOOD if (remedy.peak_reserved_bytes or now) < now else Tone.QUIET


def _set(explanation: Explanation) -> Table:
    lines: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for block in explanation.pinning_set:
        lines[block.line] += block.size_bytes
        counts[block.line] += 1
    return Table(
        title="Freeing all of these blocks lets the request succeed; if any one of them stays, it fails (replayed)",
        columns=("allocated at", "blocks", "bytes"),
        rows=tuple(
            TableRow(cells=(line, str(counts[line]), text_of_bytes(size))) for line, size in lines.most_common()
        ),
    )


def _pins(explanation: Explanation) -> Table:
    shown = explanation.pinning[:_PINS_SHOWN]
    rows = []
    for pin in shown:
        lines = Counter(block.line for block in pin.blocks)
        named = ", ".join(line for line, _ in lines.most_common(2)) + (" ..." if len(lines) > 2 else "")
        rows.append(
            TableRow(
                cells=(
                    f"{pin.address:#x}",
                    text_of_bytes(pin.size_bytes),
                    text_of_bytes(pin.free_bytes),
                    str(len(pin.blocks)),
                    named,
                ),
                share=pin.free_bytes / pin.size_bytes,
            )
        )
    more = len(explanation.pinning) - len(shown)
    return Table(
        title="Segments that cannot be returned to the driver because they contain live blocks"
        + (f" (the {len(shown)} with the most free memory; {more} more)" if more else ""),
        columns=("segment", "size", "free", "live blocks", "allocated at"),
        rows=tuple(rows),
    )


def _pictures(explanation: Explanation) -> Iterator[ReportPicture]:
    picture = explanation.picture
    if picture is None:
        return
    yield picture.blocks
    moment = "when the request failed" if "requested_bytes" in explanation.evidence else "at the peak"
    yield Icicle(
        title=f"Memory allocated {moment}, by lines of your code, outermost call first",
        levels=("line",),
        leaves=tuple((path, size, _count(blocks, "block")) for path, size, blocks in picture.tree),
    )
