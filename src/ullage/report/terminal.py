"""Draw a report on a terminal."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ullage.base.secrets import hidden_data
from ullage.base.units import text_of_bytes
from ullage.report.columns import Column, in_columns
from ullage.report.foreign_names import without_control_characters
from ullage.report.report import (
    Curve,
    LabeledText,
    Meter,
    Quote,
    Remarks,
    Report,
    Section,
    Shares,
    SizedPart,
    Table,
    Tone,
)

_STYLE_OF_TONE: Final = {
    Tone.GOOD: "bold white on dark_green",
    Tone.BAD: "bold white on red3",
    Tone.UNSURE: "bold black on orange1",
    Tone.PLAIN: "bold",
    Tone.QUIET: "dim",
}
_COLOUR_OF_TONE: Final = {
    Tone.GOOD: "green3",
    Tone.BAD: "red3",
    Tone.UNSURE: "orange1",
    Tone.PLAIN: "",
    Tone.QUIET: "dim",
}
_PALETTE: Final = (
    "dodger_blue2",
    "dark_orange",
    "green3",
    "medium_purple2",
    "gold3",
    "deep_pink3",
    "turquoise2",
    "grey58",
)
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_LEVELS_PER_CELL: Final = len(_BLOCKS) - 1
_CURVE_ROWS: Final = 4
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_METER_WIDTH: Final = 60
_BAR_WIDTH: Final = 10
_INDENT: Final = 2
_COLUMN_GAP: Final = 2
_LEGEND_GAP: Final = 1
_SHARE_WIDTH: Final = 12
# for the bytes, the percentage, the bar and the remark of one part of a total
_COLUMNS_BESIDE_LABEL: Final = 44


class ReportConsole(Console):
    """A rich console that ends the process quietly if the reader of its output closes the pipe."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError. Otherwise, rich would exit with code 1, which means "does not fit"."""
        raise BrokenPipeError


def draw(report: Report, console: Console, *, is_whole: bool = False) -> None:
    """Print a report. Details are printed only if `is_whole` is true.

    Control characters are replaced, because names and quotations in a report come from other people.
    """
    report = hidden_data(without_control_characters(replace(report, pictures=())))
    sections = (*report.sections, *report.details) if is_whole else map(_short, report.sections)
    console.print()
    head = Text(f" {report.headline} ", style=_STYLE_OF_TONE[report.tone])
    console.print(Text.assemble(head, "  ", (report.subject, "bold")), soft_wrap=True)
    for line in report.sentence.splitlines():
        console.print(Text(line), soft_wrap=line.startswith("  "))  # indented text is meant to be pasted
    last: Section | None = None
    for section in sections:
        if not isinstance(section, LabeledText) or not isinstance(last, LabeledText):
            console.print()
        last = section
        is_to_paste = isinstance(section, Quote) and section.is_to_paste
        console.print(_section(section, console.width, is_whole=is_whole), soft_wrap=is_to_paste)
    if report.more and not is_whole:
        console.print()
        console.print(Text(report.more, style="dim"))
    console.print()


def _short(section: Section) -> Section:
    if isinstance(section, Table):
        return replace(section, rows=tuple(row for row in section.rows if not row.is_detail))
    if isinstance(section, Shares) and section.short is not None and len(section.parts) > section.short + 1:
        rest = section.parts[section.short :]
        others = SizedPart(label=f"({len(rest)} others)", size_bytes=sum(part.size_bytes for part in rest))
        return replace(section, parts=(*section.parts[: section.short], others))
    return section


def _section(section: Section, width: int, *, is_whole: bool) -> RenderableType:
    match section:
        case Meter():
            return _meter(section, width, is_whole=is_whole)
        case Shares():
            return _shares(section, width)
        case Curve():
            return _curve(section, width - 4)
        case Quote():
            return _quote(section)
        case Table():
            return _table(section, width, is_whole=is_whole)
        case LabeledText():
            return _labeled(section)
        case Remarks():
            lines = [Text(f"- {item}") for item in section.items]
            return Group(Text(section.title, style="bold underline"), *(Padding(line, (0, 0, 0, 2)) for line in lines))


def _quote(quote: Quote) -> RenderableType:
    title = Text(quote.title, style="bold underline")
    if quote.is_to_paste:
        return Group(title, Text(quote.text))
    body = Group(Text(quote.place, style="bold"), Text(quote.text)) if quote.place else Text(quote.text)
    return Group(title, Padding(body, (0, 0, 0, 2)))


def _labeled(line: LabeledText) -> RenderableType:
    text = Text.assemble((f"{line.label}: ", "bold"), line.text)
    return Group(text, Padding(Text(line.remark, style="dim"), (0, 0, 0, 2))) if line.remark else text


def _table(table: Table, width: int, *, is_whole: bool) -> RenderableType:
    parts: list[RenderableType] = [Text(table.title, style="bold underline")]
    table = _without_empty_columns(table)
    if table.rows:
        parts.append(Padding(_grid(table, width - _INDENT) or _list(table), (0, 0, 0, _INDENT)))
    if not is_whole:
        parts += [Padding(Text(line), (0, 0, 0, _INDENT)) for line in table.instead]
    return Group(*parts)


def _without_empty_columns(table: Table) -> Table:
    kept = [
        number for number in range(len(table.columns)) if not number or any(row.cells[number] for row in table.rows)
    ]
    rows = tuple(replace(row, cells=tuple(row.cells[number] for number in kept)) for row in table.rows)
    return replace(table, columns=tuple(table.columns[number] for number in kept), rows=rows)


def _grid(table: Table, width: int) -> RenderableType | None:
    styles = [_COLOUR_OF_TONE[row.tone] for row in table.rows]
    columns = [
        Column(
            texts=tuple(Text(row.cells[number], style=style) for row, style in zip(table.rows, styles, strict=True)),
            heading=heading,
            is_right=_is_numeric(table, number),
            keeps_short_whole=not table.wraps or _is_numeric(table, number),
        )
        for number, heading in enumerate(table.columns)
    ]
    if any(row.share is not None for row in table.rows):
        bars = ("█" * round((row.share or 0.0) * _BAR_WIDTH) or "▏" for row in table.rows)
        columns.append(Column(texts=tuple(Text(bar, style=style) for bar, style in zip(bars, styles, strict=True))))
    return in_columns(columns, width, gap=_COLUMN_GAP)


def _list(table: Table) -> RenderableType:
    lines: list[RenderableType] = [Text(table.columns[0], style="dim")] if table.columns[0] else []
    for row in table.rows:
        style = _COLOUR_OF_TONE[row.tone]
        named = zip(table.columns[1:], row.cells[1:], strict=True)
        rest = ", ".join(f"{column} {cell}" for column, cell in named if cell)
        lines += [Text(row.cells[0], style=style), Padding(Text(rest, style=style), (0, 0, 0, _INDENT))]
    return Group(*lines)


def _is_numeric(table: Table, number: int) -> bool:
    return all(row.cells[number][:1] in "0123456789+->" for row in table.rows)


def _meter(meter: Meter, width_of_terminal: int, *, is_whole: bool) -> RenderableType:
    width = min(_METER_WIDTH, width_of_terminal - 4)
    whole = max(meter.total_bytes, sum(part.size_bytes for part in meter.parts), 1)
    bar = Text("  ")
    position, filled = 0, 0
    for number, part in enumerate(meter.parts):
        position += part.size_bytes
        cells = round(position / whole * width) - filled
        bar.append("█" * cells, style=_PALETTE[number % len(_PALETTE)])
        filled += cells
    bar.append("░" * (width - filled), style="dim")
    if meter.is_compact and not is_whole:
        return Group(bar, Padding(_compact_legend(meter, width_of_terminal - _INDENT), (0, 0, 0, _INDENT)))
    rows = [
        (
            Text("■", style=_PALETTE[number % len(_PALETTE)]),
            Text(part.label),
            Text(text_of_bytes(part.size_bytes)),
            Text(part.remark, style="dim"),
        )
        for number, part in enumerate(meter.parts)
    ]
    rows += [(Text(), Text(within.label), Text(), Text(within.text, style="dim")) for within in meter.within]
    rest = meter.total_bytes - sum(part.size_bytes for part in meter.parts)
    if meter.rest_label:
        size = Text(text_of_bytes(rest), style="bold" if rest >= 0 else "bold red")
        rows.append((Text("░", style="dim"), Text(meter.rest_label), size, Text()))
    rows.append((Text(), Text(meter.total_label), Text(text_of_bytes(meter.total_bytes)), Text()))
    return Group(Text(meter.title, style="bold underline"), bar, _legend(rows, width_of_terminal, right=(2,)))


def _compact_legend(meter: Meter, width: int) -> RenderableType:
    """Return the parts of a bar next to each other, in as few lines as they fit."""
    parts = [
        Text.assemble(("■ ", _PALETTE[number % len(_PALETTE)]), f"{part.label} {text_of_bytes(part.size_bytes)}")
        for number, part in enumerate(meter.parts)
    ]
    if meter.rest_label:
        rest = meter.total_bytes - sum(part.size_bytes for part in meter.parts)
        parts.append(Text.assemble(("░ ", "dim"), f"{meter.rest_label} {text_of_bytes(rest)}"))
    parts.append(Text(f"{meter.total_label} {text_of_bytes(meter.total_bytes)}"))
    lines = [parts[0]]
    for part in parts[1:]:
        if lines[-1].cell_len + 2 + part.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], "  ", part)
        else:
            lines.append(part)
    return Group(*lines)


def _legend(rows: Sequence[Sequence[Text]], width: int, *, right: Sequence[int]) -> RenderableType:
    columns = [
        Column(texts=texts, is_right=number in right, keeps_short_whole=False)
        for number, texts in enumerate(zip(*rows, strict=True))
    ]
    grid = in_columns(columns, width - _INDENT, gap=_LEGEND_GAP)
    lines = [Text("  ").join(cell for cell in row if cell.plain) for row in rows]
    return Padding(grid or Group(*lines), (0, 0, 0, _INDENT))


def _shares(shares: Shares, width: int) -> RenderableType:
    longest = max((len(part.label) for part in shares.parts), default=0)
    has_bars = longest <= width - _COLUMNS_BESIDE_LABEL
    rows = []
    for part in shares.parts:
        share = part.size_bytes / shares.total_bytes if shares.total_bytes else 0.0
        bar = ("█" * round(share * _SHARE_WIDTH) or ("▏" if part.size_bytes else "")) if has_bars else ""
        figures = Text(text_of_bytes(part.size_bytes)), Text(f"{share:6.1%}")
        rows.append((Text(part.label), *figures, Text(bar, style=_PALETTE[0]), Text(part.remark, style="dim")))
    return Group(Text(shares.title, style="bold underline"), _legend(rows, width, right=(1, 2)))


def _curve(curve: Curve, width: int) -> RenderableType:
    values = curve.values
    axis = f"{text_of_bytes(max(values, default=0))} "
    cells = max(1, min(width - len(axis), len(values)))
    top = max(values, default=0) or 1
    heights = [
        round(max(values[start : max(stop, start + 1)], default=0) / top * _CURVE_ROWS * _LEVELS_PER_CELL)
        for start, stop in itertools.pairwise(number * len(values) // cells for number in range(cells + 1))
    ]
    parts: list[RenderableType] = [Text.assemble((curve.title, "bold underline"), (f"  {curve.mark_label}", "dim"))]
    for row in reversed(range(_CURVE_ROWS)):
        blocks = "".join(_BLOCKS[min(_LEVELS_PER_CELL, max(0, height - row * _LEVELS_PER_CELL))] for height in heights)
        label = axis if row == _CURVE_ROWS - 1 else "0 ".rjust(len(axis)) if row == 0 else " " * len(axis)
        parts.append(Text.assemble("  ", (label, "dim"), (blocks, _PALETTE[0])))
    if curve.marks:
        parts.append(Text(f"  {' ' * len(axis)}{_marks(curve, cells)}", style="dim"))
    if curve.bands:
        parts += [Text(f"  {' ' * len(axis)}{line}", style="dim") for line in _bands(curve, cells)]
    if curve.remark:
        parts.append(Padding(Text(curve.remark), (0, 0, 0, 2)))
    return Group(*parts)


def _bands(curve: Curve, cells: int) -> list[str]:
    letters: dict[str, str] = {}
    for band in curve.bands:
        if band.label not in letters:
            free = (letter for letter in (*band.label, *_LETTERS) if letter not in letters.values())
            letters[band.label] = next(free, "…")
    line = [" "] * cells
    for band in curve.bands:
        first, last = (at * cells // max(1, len(curve.values)) for at in (band.first, band.last))
        line[first : last + 1] = letters[band.label] * (last + 1 - first)
    legend = ", ".join(f"{letter} {label}" for label, letter in letters.items())
    return ["".join(line).rstrip(), legend]


def _marks(curve: Curve, cells: int) -> str:
    line = [" "] * cells
    for number, mark in enumerate(curve.marks):
        label = str(number + 1)
        at = min(cells - len(label), mark * cells // max(1, len(curve.values)))
        if all(cell == " " for cell in line[at : at + len(label)]):  # labels that would overlap are left out
            line[at : at + len(label)] = label
    return "".join(line).rstrip()
