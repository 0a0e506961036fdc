"""Draw a report on a terminal, with no knowledge of what the numbers mean."""

import itertools
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from ullage._units import text_of_bytes
from ullage.report.report import Curve, Meter, Quote, Remarks, Report, Section, Shares, SizedPart, Table, TableRow, Tone

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
_METER_WIDTH: Final = 60
_BAR_WIDTH: Final = 10
_CONTROL_CHARACTERS: Final = dict.fromkeys(
    (*set(range(32)).difference(b"\n\t"), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "�"
)
_UNWRAPPED_CHARACTERS = 40  # characters of a table's cell
_INDENT: Final = 2
_COLUMN_GAP: Final = 2
_SHARE_WIDTH: Final = 12
_COLUMNS_BESIDE_LABEL: Final = 44
"""Columns that the bytes, share, bar and remark of a part need."""


def draw(report: Report, console: Console, *, is_whole: bool = False) -> None:
    """Print a report, without its details unless the whole of it is wanted.

    Letters that steer a terminal are shown as a mark: names and quotations are other people's.
    """
    report = without_control_characters(report)
    sections = (*report.sections, *report.details) if is_whole else map(_short, report.sections)
    console.print()
    head = Text(f" {report.headline} ", style=_STYLE_OF_TONE[report.tone])
    console.print(Text.assemble(head, "  ", (report.subject, "bold")), soft_wrap=True)
    for line in report.sentence.splitlines():
        console.print(Text(line), soft_wrap=line.startswith("  "))  # what is indented is to be pasted
    for section in sections:
        console.print()
        console.print(_section(section, console.width, is_whole=is_whole))
    if report.more and not is_whole:
        console.print()
        console.print(Text(report.more, style="dim"))
    console.print()


def _short(section: Section) -> Section:
    """Return the section without its details."""
    if isinstance(section, Table):
        return replace(section, rows=tuple(row for row in section.rows if not row.is_detail))
    if isinstance(section, Shares) and section.short is not None and len(section.parts) > section.short + 1:
        rest = section.parts[section.short :]
        others = SizedPart(label=f"({len(rest)} others)", size_bytes=sum(part.size_bytes for part in rest))
        return replace(section, parts=(*section.parts[: section.short], others))
    return section


def without_control_characters(thing: Any) -> Any:
    """Return the same data with all control characters replaced, which could steer a terminal."""
    if isinstance(thing, str):
        return thing.translate(_CONTROL_CHARACTERS)
    if isinstance(thing, tuple):
        return tuple(without_control_characters(one) for one in thing)
    if is_dataclass(thing) and not isinstance(thing, type):
        changed = {field.name: without_control_characters(getattr(thing, field.name)) for field in fields(thing)}
        return replace(thing, **changed | ({"pictures": ()} if isinstance(thing, Report) else {}))
    return thing


def _section(section: Section, width: int, *, is_whole: bool) -> RenderableType:
    match section:
        case Meter():
            return _meter(section, min(_METER_WIDTH, width - 4))
        case Shares():
            return _shares(section, width)
        case Curve():
            return _curve(section, width - 4)
        case Quote():
            place = Text(section.place, style="bold") if section.place else Text("")
            body = Group(place, Text(section.text)) if section.place else Text(section.text)
            return Group(Text(section.title, style="bold underline"), Padding(body, (0, 0, 0, 2)))
        case Table():
            return _table(section, width, is_whole=is_whole)
        case Remarks():
            lines = [Text(f"- {item}") for item in section.items]
            return Group(Text(section.title, style="bold underline"), *(Padding(line, (0, 0, 0, 2)) for line in lines))


def _table(table: Table, width: int, *, is_whole: bool) -> RenderableType:
    parts: list[RenderableType] = [Text(table.title, style="bold underline")]
    if table.rows:
        grid = _grid(table) if _needed(table) <= width - _INDENT else _list(table)
        parts.append(Padding(grid, (0, 0, 0, _INDENT)))
    if not is_whole:
        parts += [Padding(Text(line), (0, 0, 0, _INDENT)) for line in table.instead]
    return Group(*parts)


def _grid(table: Table) -> RenderableType:
    grid = Grid(box=None, padding=(0, _COLUMN_GAP, 0, 0), pad_edge=False, header_style="dim")
    has_bars = any(row.share is not None for row in table.rows)
    for number, column in enumerate(table.columns):
        grid.add_column(
            Text(column),
            justify="right" if _is_numeric(table, number) else "left",
            no_wrap=_is_unwrapped(table, number),
            min_width=_least(table, number),
            overflow="fold",
        )
    if has_bars:
        grid.add_column("", no_wrap=True, min_width=max(len(_bar_of(row)) for row in table.rows))
    for row in table.rows:
        style = _COLOUR_OF_TONE[row.tone]
        bar = [Text(_bar_of(row), style=style)] if has_bars else []
        grid.add_row(*(Text(cell, style=style) for cell in row.cells), *bar)
    return grid


def _list(table: Table) -> RenderableType:
    """Draw the rows of a table that is too wide one below the other: first the name, then the rest."""
    lines: list[RenderableType] = []
    for row in table.rows:
        style = _COLOUR_OF_TONE[row.tone]
        named = zip(table.columns[1:], row.cells[1:], strict=True)
        rest = ", ".join(f"{column} {cell}" for column, cell in named if cell)
        lines += [Text(row.cells[0], style=style), Padding(Text(rest, style=style), (0, 0, 0, _INDENT))]
    return Group(*lines)


def _bar_of(row: TableRow) -> str:
    return "█" * round((row.share or 0.0) * _BAR_WIDTH) or "▏"


def _is_numeric(table: Table, number: int) -> bool:
    return all(row.cells[number][:1] in "0123456789+->" for row in table.rows)


def _is_unwrapped(table: Table, number: int) -> bool:
    return max((len(row.cells[number]) for row in table.rows), default=0) <= _UNWRAPPED_CHARACTERS


def _least(table: Table, number: int) -> int:
    """Return the width that a table's column needs so that no word in it is broken."""
    texts = [table.columns[number], *(row.cells[number] for row in table.rows)]
    if not _is_unwrapped(table, number):
        texts = [word for text in texts for word in text.split()]
    return max(map(len, texts), default=0)


def _needed(table: Table) -> int:
    """Return the width that a whole table needs."""
    bars = max((len(_bar_of(row)) for row in table.rows if row.share is not None), default=0)
    columns = [_least(table, number) for number in range(len(table.columns))] + ([bars] if bars else [])
    return sum(columns) + _COLUMN_GAP * len(columns)


def _meter(meter: Meter, width: int) -> RenderableType:
    """Draw a stacked bar with a legend line for each part."""
    whole = max(meter.total_bytes, sum(part.size_bytes for part in meter.parts), 1)
    bar = Text("  ")
    position, filled = 0, 0
    for number, part in enumerate(meter.parts):
        position += part.size_bytes
        cells = round(position / whole * width) - filled
        bar.append("█" * cells, style=_PALETTE[number % len(_PALETTE)])
        filled += cells
    bar.append("░" * (width - filled), style="dim")
    table = _columns()
    for number, part in enumerate(meter.parts):
        table.add_row(
            Text("■", style=_PALETTE[number % len(_PALETTE)]),
            Text(part.label),
            text_of_bytes(part.size_bytes),
            Text(part.remark, style="dim"),
        )
    for within in meter.within:
        table.add_row("", Text(within.label), "", Text(within.text, style="dim"))
    rest = meter.total_bytes - sum(part.size_bytes for part in meter.parts)
    if meter.rest_label:
        table.add_row(
            Text("░", style="dim"),
            Text(meter.rest_label),
            Text(text_of_bytes(rest), style="bold" if rest >= 0 else "bold red"),
            "",
        )
    table.add_row("", Text(meter.total_label), text_of_bytes(meter.total_bytes), "")
    return Group(Text(meter.title, style="bold underline"), bar, table)


def _columns() -> Grid:
    table = Grid.grid(padding=(0, 1))
    table.add_column(width=3, justify="right")
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    return table


def _shares(shares: Shares, width: int) -> RenderableType:
    table = Grid.grid(padding=(0, 1))
    table.add_column(width=1)
    longest = max((len(part.label) for part in shares.parts), default=0)
    has_bars = longest <= width - _COLUMNS_BESIDE_LABEL
    table.add_column(
        no_wrap=False, max_width=max(24, width - _COLUMNS_BESIDE_LABEL + (0 if has_bars else _SHARE_WIDTH))
    )
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    for part in shares.parts:
        share = part.size_bytes / shares.total_bytes if shares.total_bytes else 0.0
        bar = ("█" * round(share * _SHARE_WIDTH) or ("▏" if part.size_bytes else "")) if has_bars else ""
        table.add_row(
            "",
            Text(part.label),
            text_of_bytes(part.size_bytes),
            f"{share:6.1%}",
            Text(bar, style=_PALETTE[0]),
            Text(part.remark),
        )
    return Group(Text(shares.title, style="bold underline"), table)


def _curve(curve: Curve, width: int) -> RenderableType:
    """Draw blocks over `_CURVE_ROWS` rows, each cell the highest value of its span, and a line of marks below."""
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
    if curve.remark:
        parts.append(Padding(Text(curve.remark), (0, 0, 0, 2)))
    return Group(*parts)


def _marks(curve: Curve, cells: int) -> str:
    line = [" "] * cells
    for number, mark in enumerate(curve.marks):
        label = str(number + 1)
        at = min(cells - len(label), mark * cells // max(1, len(curve.values)))
        if all(cell == " " for cell in line[at : at + len(label)]):  # labels that would overlap are left out
            line[at : at + len(label)] = label
    return "".join(line).rstrip()
