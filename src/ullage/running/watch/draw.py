"""Draws the screen of `ullage watch` as lines of text."""

import time
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rich.text import Text

from ullage.base.units import text_of_bytes
from ullage.running.watch.detail import (
    STYLE_OF_STATE,
    lines_of_cards,
    lines_of_help,
    lines_of_process,
    mark_of,
)
from ullage.running.watch.view import CardRow, Inside, View

_BAR: Final = 20
_LEAST_BAR: Final = 8
_FOOTERS: Final = (
    "q quit  ↑↓ process  PgUp/PgDn more  c GPUs  o whole run  p pause  ? help",
    "q quit  ↑↓ process  c GPUs  o run  p pause  ? help",
    "q quit  ↑↓ choose  ? help",
)
_COLUMNS: Final = (  # heading, width; if the screen is too narrow, the last columns are left out first
    ("PID", 9),
    ("state", 15),
    ("allocated", 12),
    ("peak", 12),
    ("headroom", 12),
    ("rank", 5),
    ("step", 8),
)


class Page(Enum):
    """The page in the lower part of the screen: a process, all GPUs, or the help."""

    PROCESS = "process"
    CARDS = "cards"
    HELP = "help"


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """What the user has selected on the screen of `ullage watch`, such as a process."""

    width: int
    height: int
    chosen: int = 0
    """The index of the selected process."""
    page: Page = Page.PROCESS
    is_whole: bool = False
    is_paused: bool = False
    scroll: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenPicture:
    """The lines of a screen."""

    lines: tuple[Text, ...]
    most_scroll: int
    """The maximum number of lines by which the lower part of the screen can be scrolled."""


def draw(view: View, display: Display) -> ScreenPicture:
    """Draw the screen of `ullage watch` with exactly `display.height` lines of at most `display.width` characters."""
    width = max(1, display.width)
    head = [_head(view, display, width), *_cards(view, display, width), *_processes(view, display, width)]
    foot = Text(next((one for one in _FOOTERS if len(one) <= width), "q quit"[:width]), style="reverse")
    foot.pad_right(width - foot.cell_len)
    head = head[: max(0, display.height - 1)]
    room = max(0, display.height - len(head) - 1)
    lower = _lower(view, display, width, room)
    marks: list[Text] = []
    if len(lower) > room > 1:  # a separate line, so that nothing is covered
        room -= 1
        marks = [_mark(display.scroll, room, len(lower), width)]
    most = max(0, len(lower) - room)
    start = min(display.scroll, most)
    shown = lower[start : start + room]
    blank = [Text("")] * (room - len(shown))
    lines = [*head, *shown, *blank, *marks, foot][-max(1, display.height) :]
    return ScreenPicture(lines=tuple(_cut(line, width) for line in lines), most_scroll=most)


def _head(view: View, display: Display, width: int) -> Text:
    clock = time.strftime("%H:%M:%S", time.localtime(view.time))
    end = f"paused at {clock}" if display.is_paused else f"all ended, {clock}" if view.is_over else clock
    subject = shortened(view.subject, max(1, width - len(end) - 16))
    line = Text.assemble((" ullage watch ", "reverse"), " ", (subject, "bold"))
    line.pad_right(max(1, width - line.cell_len - len(end)))
    return line.append(end, style="yellow" if display.is_paused else "dim")


def _cards(view: View, display: Display, width: int) -> list[Text]:
    most = max(1, display.height // 5)
    if display.page is Page.CARDS:  # the lower part shows them, with more lines for each GPU
        return []
    shown = view.cards if len(view.cards) <= most else view.cards[: most - 1]
    tails = [_tail(card) for card in shown]
    longest = max(map(len, tails), default=0)
    bar = min((_bar_of(card, width - longest) for card in shown), default=0)
    lines = [_card(card, f"{tail:<{longest}}", width, bar) for card, tail in zip(shown, tails, strict=True)]
    if len(shown) < len(view.cards):
        rest = view.cards[len(shown) :]
        used, total = sum(card.used_bytes for card in rest), sum(card.total_bytes for card in rest)
        lines.append(Text(f"{len(rest)} more GPUs: {text_of_bytes(used)} of {text_of_bytes(total)} used; c: show all"))
    return lines


def _tail(card: CardRow) -> str:
    others = sum(one.used_bytes or 0 for one in card.holders if not one.is_watched)
    sizes = f"{text_of_bytes(card.used_bytes):>10} of {text_of_bytes(card.total_bytes)}"
    return sizes + (f", others {text_of_bytes(others)}" if others else "")


def _bar_of(card: CardRow, room: int) -> int:
    rest = room - len(card.name) - len(_mark_in(card, room)) - 5
    return min(_BAR, max(rest, _LEAST_BAR if room > 4 * _LEAST_BAR else 0))


def _mark_in(card: CardRow, room: int) -> str:
    return mark_of(card) if room >= 44 else "~" if card.is_emulated or card.is_hearsay else ""


def _card(card: CardRow, tail: str, width: int, bar: int) -> Text:
    share = min(1.0, card.used_bytes / card.total_bytes) if card.total_bytes else 0.0
    mark = _mark_in(card, width - len(tail))
    filled = round(share * bar)
    line = Text(f"{card.index} ", style="bold")
    line.append(shortened(card.name, max(1, width - len(tail) - bar - len(mark) - 5))).append(mark)
    line.pad_right(max(1, width - len(tail) - 1 - bar - line.cell_len))
    line.append("█" * filled, style="red" if share > 0.9 else "green").append("░" * (bar - filled), style="dim")
    return line.append(" ").append(tail)


def _processes(view: View, display: Display, width: int) -> list[Text]:
    if not view.processes or display.page is not Page.PROCESS:
        return []
    columns: list[tuple[str, int]] = []
    for name, size in _COLUMNS:
        if sum(column[1] for column in columns) + size <= width - 1:
            columns.append((name, size))
    has_ranks = any(inside.rank is not None for inside in view.processes)
    columns = [column for column in columns if has_ranks or column[0] != "rank"]
    chosen = min(display.chosen, len(view.processes) - 1)
    room = max(1, display.height // 4 - 1)
    start = min(max(0, chosen - room // 2), max(0, len(view.processes) - room))
    window = view.processes[start : start + room]
    heading = "".join(f"  {name:<{size - 2}}" if name == "state" else f"{name:>{size}}" for name, size in columns)
    if len(window) < len(view.processes):
        heading += f" {chosen + 1}/{len(view.processes)}"
    lines = [Text(f" {heading}", style="dim")]
    for index, inside in enumerate(window, start):
        line = Text(">" if index == chosen else " ", style="bold")
        for name, size in columns:
            text = _cell(inside, name)
            if name == "state":
                line.append(f"  {text:<{size - 2}}", style=STYLE_OF_STATE.get(inside.state, ""))
            else:
                line.append(f"{text:>{size}}")
        if index == chosen:
            line.stylize("bold")
        lines.append(line)
    return lines


def _cell(inside: Inside, column: str) -> str:
    devices = inside.devices
    match column:
        case "PID":
            return str(inside.pid)
        case "state":
            return shortened(inside.state, 13)
        case "rank":
            return "" if inside.rank is None else str(inside.rank)
        case "step":
            return str(inside.steps)
    if not devices:
        return "-"
    if column == "headroom":
        known = [device.headroom_bytes for device in devices if device.limit_bytes]
        return text_of_bytes(max(0, min(known))) if known else "-"
    if column == "peak":
        return text_of_bytes(max(device.peak_bytes for device in devices))
    return text_of_bytes(sum(device.allocated_bytes for device in devices))


def _lower(view: View, display: Display, width: int, room: int) -> list[Text]:
    if display.page is Page.HELP:
        return lines_of_help(width=width)
    if display.page is Page.CARDS or not view.processes:
        return lines_of_cards(view, width=width)
    inside = view.processes[min(display.chosen, len(view.processes) - 1)]
    return lines_of_process(inside, view, width=width, height=room, is_whole=display.is_whole)


def _mark(scroll: int, room: int, count: int, width: int) -> Text:
    start = min(scroll, count - room)
    where = f"lines {start + 1} to {start + room} of {count}"
    keys = " and ".join(key for key, has in (("PgUp", start > 0), ("PgDn", start < count - room)) if has)
    return Text(f"{where}: {keys}".rjust(width), style="dim")


def shortened(text: str, width: int) -> str:
    """Shorten a text by leaving out its middle, because names differ mostly at their ends."""
    if len(text) <= width:
        return text
    if width < 3:
        return text[:width]
    left = (width - 1) // 2
    return f"{text[:left]}…{text[len(text) - (width - 1 - left) :]}"


def _cut(line: Text, width: int) -> Text:
    if line.cell_len <= width:
        return line
    line = line.copy()
    line.truncate(width)
    return line
