"""Arrange an explanation into a report: what first, in which words."""

from collections import Counter
from collections.abc import Iterator

from ullage._units import text_of_bytes
from ullage.analysis.explain import Cause, Explanation
from ullage.analysis.remedy import Remedy
from ullage.report.report import (
    Map,
    Meter,
    Part,
    Picture,
    Remarks,
    Report,
    Section,
    Shares,
    Strip,
    Table,
    TableRow,
    Tone,
)

_PINS_SHOWN = 8
_STRIPS_SHOWN = 60
_HEADLINES = {cause: cause.value.replace("_", " ").upper() for cause in Cause}


def describe(explanation: Explanation) -> Report:
    """Make the report of an explanation."""
    return Report(
        headline=_HEADLINES[explanation.cause],
        tone=Tone.UNSURE if explanation.cause is Cause.CANNOT_TELL else Tone.BAD,
        subject=explanation.source,
        sentence=explanation.sentence,
        sections=tuple(_sections(explanation)),
        pictures=tuple(_pictures(explanation)),
    )


def _sections(explanation: Explanation) -> Iterator[Section]:
    yield _card(explanation)
    if explanation.remedies:
        yield Table(
            title="What would have helped: each setting and action replayed with this very run",
            columns=("change", "fits", "peak reserved", "driver calls"),
            rows=tuple(_remedy(remedy) for remedy in explanation.remedies),
        )
    if explanation.pinning_set:
        yield _set(explanation)
    if explanation.holders:
        total = explanation.evidence["allocated_bytes"]
        yield Shares(
            title=f"Who held the {text_of_bytes(total)} that were allocated, by your line",
            total_bytes=total,
            parts=tuple(
                Part(label=holder.line, size_bytes=holder.bytes, remark=_count(holder.blocks, "block"))
                for holder in explanation.holders
            ),
        )
    if explanation.pinning:
        yield _pins(explanation)
    notes = list(explanation.notes)
    if explanation.departures:
        notes.append(f"the replay departs from the recording at {_count(explanation.departures, 'operation')}")
    yield Remarks(title="To know", items=tuple(notes))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _card(explanation: Explanation) -> Meter:
    evidence = explanation.evidence
    room = evidence.get("room_bytes", evidence["reserved_bytes"])
    parts = [Part(label="allocated", size_bytes=evidence["allocated_bytes"], remark="by tensors")]
    if evidence["pending_bytes"]:
        parts.append(
            Part(label="freed, pending", size_bytes=evidence["pending_bytes"], remark="other streams may use it")
        )
    largest = evidence.get("largest_free_block_bytes")
    cached = f"in pieces of at most {text_of_bytes(largest)}" if largest is not None else ""
    parts.append(Part(label="cached", size_bytes=evidence["cached_bytes"], remark=cached))
    when = "when the request failed" if "requested_bytes" in evidence else "at the end"
    place = f" at {explanation.failing_line}" if explanation.failing_line else ""
    return Meter(
        title=f"What the allocator had {when}{place}",
        total_bytes=room,
        total_label="room" if "room_bytes" in evidence else "reserved",
        parts=tuple(parts),
        rest_label="free on the card",
    )


def _remedy(remedy: Remedy) -> TableRow:
    if not remedy.proved:
        return TableRow(cells=(remedy.name, "estimate", "", ""), tone=Tone.QUIET)
    more = remedy.more_calls or 0
    calls = f"{remedy.driver_calls:,} ({more:+,})" if remedy.driver_calls is not None else ""
    return TableRow(
        cells=(remedy.name, "yes" if remedy.fits else "no", text_of_bytes(remedy.peak_reserved_bytes or 0), calls),
        tone=Tone.GOOD if remedy.fits else Tone.BAD,
    )


def _set(explanation: Explanation) -> Table:
    lines: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for block in explanation.pinning_set:
        lines[block.line] += block.size_bytes
        counts[block.line] += 1
    return Table(
        title="Without these blocks the request would have succeeded; with any one of them it fails (replayed)",
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
        title="Segments that cannot be given back, because live blocks are in them"
        + (f" (the {len(shown)} with most free memory; {more} more)" if more else ""),
        columns=("segment", "size", "free", "live", "from"),
        rows=tuple(rows),
    )


def _pictures(explanation: Explanation) -> Iterator[Picture]:
    if not explanation.pinning:
        return
    yield Map(
        title="Segments with free memory that cannot be used, and what lies in them",
        strips=tuple(
            Strip(
                name=f"{pin.address:#x}",
                size_bytes=pin.size_bytes,
                blocks=tuple((block.address - pin.address, block.size_bytes, block.line) for block in pin.blocks),
            )
            for pin in sorted(explanation.pinning, key=lambda pin: -pin.size_bytes)[:_STRIPS_SHOWN]
        ),
        remark="what is empty is cached",
    )
