"""Writes the report on the difference between two recorded runs."""

from collections.abc import Iterator, Sequence
from typing import Final

from ullage.base.source_location import shortened
from ullage.base.units import text_of_bytes
from ullage.explaining.difference.difference import ChangeKind, Difference, Level, LineChange, Moment
from ullage.report.report import Remarks, Report, Section, Table, TableRow, Tone

_GREW_SHOWN: Final = 15
_SHRANK_SHOWN: Final = 8
_COLUMNS: Final = ("change", "before", "after", "blocks", "")


def describe(difference: Difference) -> Report:
    """Return the report on the difference between two recorded runs."""
    return Report(
        headline=_headline(difference),
        tone=_tone(difference),
        subject=f"{difference.before} -> {difference.after}",
        sentence=_sentence(difference),
        sections=tuple(_sections(difference)),
    )


def _headline(difference: Difference) -> str:
    if not any(level.after - level.before for level in difference.overall):
        return "AS MUCH AS BEFORE"
    where = ("AT THE END", "RESERVED", "AT THE PEAK")  # The peak may be unknown.
    return ", ".join(
        f"{_more_or_less(level.after - level.before)} {name}"
        for level, name in zip(difference.overall, where, strict=False)
    )


def _more_or_less(number: int) -> str:
    return f"{text_of_bytes(abs(number))} {'MORE' if number > 0 else 'LESS'}" if number else "AS MUCH"


def _tone(difference: Difference) -> Tone:
    grown = [level.after - level.before for level in difference.overall]
    if max(grown) > 0:
        return Tone.UNSURE if min(grown) < 0 else Tone.BAD
    return Tone.GOOD if min(grown) < 0 else Tone.PLAIN


def _grown(difference: Difference) -> int:
    allocated = difference.levels[0]
    return allocated.after - allocated.before


def _sentence(difference: Difference) -> str:
    allocated = difference.levels[0]
    when = "At the end" if difference.moment is Moment.END else "At the peak of each run and device,"
    before, after = text_of_bytes(allocated.before), text_of_bytes(allocated.after)
    text = f"{when} {after} are allocated, compared with {before} before"
    grown = _grown(difference)
    if not difference.lines or not grown:
        return f"{text}."
    most = difference.lines[0] if grown > 0 else difference.lines[-1]
    place = f"{most.name} in {most.function}" if most.function else most.name
    blocks = most.after_blocks - most.before_blocks
    counted = f", {abs(blocks):,} block{'' if abs(blocks) == 1 else 's'} {'more' if blocks > 0 else 'fewer'}"
    kind = {ChangeKind.NEW: ", which held no memory before", ChangeKind.VANISHED: ", which no longer holds memory"}.get(
        most.kind, ""
    )
    part = "most of the change is" if 2 * abs(most.grown_bytes) > abs(grown) else "the largest part is"
    return f"{text}; {part} at {place}{kind}: {_more(most.grown_bytes)}{counted if blocks else ''}."


def _more(number: int, *, is_bytes: bool = True) -> str:
    if not number:
        return "same"
    return ("+" if number > 0 else "") + (text_of_bytes(number) if is_bytes else f"{number:,}")


def _sections(difference: Difference) -> Iterator[Section]:
    shown, left_out = _shown(difference.lines)
    if shown:
        yield Table(
            title="Changes by line of your code, the largest growth first",
            columns=("allocated at", *_COLUMNS),
            rows=tuple(_row(change) for change in shown),
        )
    named, more = _shown(difference.annotations)
    if named:
        left_out += more
        yield Table(
            title="Changes by named range or label",
            columns=("name", *_COLUMNS),
            rows=tuple(_row(change) for change in named),
        )
    yield Table(
        title="Totals of the allocator",
        columns=("", "change", "before", "after"),
        rows=tuple(_level(level) for level in difference.levels if level.before or level.after),
    )
    notes = list(difference.notes)
    same = [line for line in difference.lines if not _is_changed(line)]
    if same:
        held = text_of_bytes(sum(line.after_bytes for line in same))
        lines = "1 line holds" if len(same) == 1 else f"{len(same)} lines hold"
        notes.append(f"{lines} the same amount as before: {held}")
    if left_out:
        size = text_of_bytes(sum(abs(change.grown_bytes) for change in left_out))
        notes.append(f"{len(left_out)} more changed by {size} in total (--json lists all)")
    if notes:
        yield Remarks(title="To know", items=tuple(notes))


def _is_changed(change: LineChange) -> bool:
    return bool(change.grown_bytes) or change.after_blocks != change.before_blocks or change.kind is not ChangeKind.SAME


def _shown(changes: Sequence[LineChange]) -> tuple[list[LineChange], list[LineChange]]:
    changed = [change for change in changes if _is_changed(change)]
    grew = [change for change in changed if change.grown_bytes >= 0]
    shrank = [change for change in changed if change.grown_bytes < 0]
    cut = max(0, len(shrank) - _SHRANK_SHOWN)
    return grew[:_GREW_SHOWN] + shrank[cut:], grew[_GREW_SHOWN:] + shrank[:cut]


def _row(change: LineChange) -> TableRow:
    remark = f"was :{change.moved_from.rpartition(':')[2]}" if change.moved_from else ""
    return TableRow(
        cells=(
            shortened(change.name),
            _more(change.grown_bytes),
            text_of_bytes(change.before_bytes),
            text_of_bytes(change.after_bytes),
            _more(change.after_blocks - change.before_blocks, is_bytes=False),
            remark or {ChangeKind.NEW: "new", ChangeKind.VANISHED: "gone"}.get(change.kind, ""),
        ),
        tone=Tone.BAD if change.grown_bytes > 0 else Tone.GOOD if change.grown_bytes else Tone.QUIET,
    )


def _level(level: Level) -> TableRow:
    def text(number: int) -> str:
        return text_of_bytes(number) if level.is_bytes else f"{number:,}"

    return TableRow(
        cells=(
            level.name,
            _more(level.after - level.before, is_bytes=level.is_bytes),
            text(level.before),
            text(level.after),
        )
    )
