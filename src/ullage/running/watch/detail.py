"""The lower part of the screen of `ullage watch`: one process, all GPUs, or the help."""

import itertools
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.text import Text

from ullage.base.units import text_of_bytes
from ullage.running.watch.view import GONE, RUNS, CardHolder, CardRow, DeviceRow, Inside, View

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_EIGHTHS: Final = len(_BLOCKS) - 1
_AXIS: Final = 11  # "1023.9 MiB "
_NEAR: Final = 0.25  # of the limit; a plot of lower values is scaled up and does not show the limit
_SHORT: Final = 0.9  # of the limit
STYLE_OF_STATE: Final = {RUNS: "green", "ended": "dim", "failed": "red", "out of memory": "bold red", GONE: "yellow"}
KEYS: Final = (
    ("up, down, tab", "choose a process"),
    ("PgUp, PgDn", "scroll the lower part, if it shows that there are more lines"),
    ("c", "show GPUs and all processes on them; press again to go back"),
    ("o", "show the whole run; press again for the latest steps"),
    ("p", "pause the display; press again to continue"),
    ("?", "show this help; press again to go back"),
    ("q", "quit"),
)
_WORDS: Final = (
    ("allocated", "bytes that tensors use now"),
    ("reserved", "bytes that PyTorch's allocator holds from the driver"),
    ("cached", "reserved but not allocated: available for new tensors"),
    ("peak", "highest allocated bytes, in a step or in the run"),
    ("headroom", "GPU memory minus peak reserved, contexts and other processes"),
    ("retries", "how often the cache was emptied because memory was short"),
    ("others", "memory of processes that are not watched, reported by the driver"),
)
_SPACE: Final = "\N{NO-BREAK SPACE}"
_QUIET_SECONDS: Final = 10.0
_LEAST_PLOT: Final = 4


def wrapped(text: Text, width: int) -> list[Text]:
    """Break a text into lines of a given width. Words that are longer than a line are split."""
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        while line.cell_len > width:
            at = line.plain.rfind(" ", 0, width + 1)
            at = at if at > 0 else _fitting(line.plain, width)
            line, rest = line.divide([at])
            lines.append(line)
            line = rest
            if line.plain.startswith(" "):
                line = line.divide([1])[1]
        lines.append(line)
    for line in lines:
        line.plain = line.plain.replace(
            _SPACE, " "
        )  # the replacement has the same length, so that styles keep their positions
    return lines


def lines_of_process(inside: Inside, view: View, *, width: int, height: int, is_whole: bool) -> list[Text]:
    """Return the lines about one process, with a plot of its memory. `height` is the number of lines."""
    above = [line for text in _above(inside) for line in wrapped(text, width)]
    below = [line for text in _below(inside, view) for line in wrapped(text, width)]
    devices = [device for device in inside.devices if device.peaks]
    if not devices:
        return [*above, *below]
    room = height - len(above) - len(below)
    rows = max(_LEAST_PLOT, room // len(devices) - 2)
    drawn = [line for one in devices for line in _plot(one, width=width, rows=rows, is_whole=is_whole)]
    return [*above, *drawn, *below]


def lines_of_cards(view: View, *, width: int) -> list[Text]:
    """Return the lines about all GPUs and the processes on them."""
    texts = [Text(view.subject, style="dim")]
    for card in view.cards:
        texts.append(Text.assemble((f"GPU {card.index} ", "bold"), (card.name, "bold"), mark_of(card)))
        used, total = text_of_bytes(card.used_bytes), text_of_bytes(card.total_bytes)
        free = card.total_bytes - card.used_bytes
        rest = f"{text_of_bytes(free)} free" if free >= 0 else f"{text_of_bytes(-free)} more than its total"
        texts.append(Text(f"  {used} of {total} used, {rest}"))
        texts += (Text(f"  {_of_holder(one)}") for one in card.holders)
        if card.hidden_bytes:
            texts.append(Text(f"  {text_of_bytes(card.hidden_bytes)} more by processes that are not shown here"))
    texts += (Text(note, style="yellow") for note in view.notes)
    return [line for text in texts for line in wrapped(text, width)]


def lines_of_help(*, width: int) -> list[Text]:
    """Return the lines of the help page."""
    texts = [
        Text.assemble((f"{key:<15}", "bold"), what) for pairs in (KEYS, (("", ""),), _WORDS) for key, what in pairs
    ]
    return [line for text in texts for line in wrapped(text, width)]


def mark_of(card: CardRow) -> str:
    """Return a text that says that a GPU is emulated or that the driver does not report it. Empty for other GPUs."""
    return " (emulated)" if card.is_emulated else " (as reported by its processes)" if card.is_hearsay else ""


def _above(inside: Inside) -> Iterator[Text]:
    yield _title(inside)
    for device in inside.devices:
        yield from _numbers(device, is_one=len(inside.devices) == 1)
    if inside.ooms:
        times = "once" if inside.ooms == 1 else f"{inside.ooms} times"
        yield Text(f"out of memory {times}" + (":" if inside.evidence else ""), style="bold red")
    for folder in inside.evidence:
        yield Text(f"  ullage explain {folder}", style="bold")
    for finding in inside.growth:
        yield Text(finding, style="yellow")
    if inside.roles:
        yield _in_pieces(f"{name} {text_of_bytes(size)}" for name, size in inside.roles)


def _in_pieces(pieces: Iterable[str]) -> Text:
    return Text(", ".join(piece.replace(" ", _SPACE) for piece in pieces))


def _title(inside: Inside) -> Text:
    style = STYLE_OF_STATE.get(inside.state, "")
    text = Text.assemble((f"process {inside.pid}", "bold"))
    if inside.rank is not None:
        text.append(f", rank {inside.rank}" + (f" of {inside.world_size}" if inside.world_size else ""))
    text.append(", ").append(inside.state, style=style).append(f", step {inside.steps}")
    if inside.step_seconds:
        text.append(f", {inside.step_seconds:.3g} s per step")
    if inside.host and inside.host != socket.gethostname():
        text.append(f", on {inside.host}")
    if inside.is_alive and (inside.quiet_seconds or 0) > _QUIET_SECONDS:
        text.append(f", no update for {inside.quiet_seconds:.0f} s", style="yellow")
    return text


def _numbers(device: DeviceRow, *, is_one: bool) -> Iterator[Text]:
    head = "" if is_one else f"device {device.index}: "
    split = f" ({text_of_bytes(device.split_bytes)} in splits)" if device.split_bytes else ""
    yield Text(
        f"{head}allocated {text_of_bytes(device.allocated_bytes)}, reserved {text_of_bytes(device.reserved_bytes)}, "
        f"cached {text_of_bytes(device.cached_bytes)}{split}"
    )
    where = f" at step {device.peak_step}" + (f", {device.peak_line}" if device.peak_line else "")
    room = f", headroom {text_of_bytes(max(0, device.headroom_bytes))}" if device.limit_bytes else ""
    text = Text(f"{head}peak {text_of_bytes(device.peak_bytes)}{where}{room}, retries {device.retries}")
    if device.limit_bytes and device.headroom_bytes < 0:
        text.stylize("yellow")
    yield text


def _plot(device: DeviceRow, *, width: int, rows: int, is_whole: bool) -> Iterator[Text]:
    values = device.overview if is_whole and device.overview else device.peaks
    cells = max(1, width - 11)
    shown = values if is_whole else values[-cells:]
    of = f"device {device.index}" + (f", {device.card_name}" if device.card_name else "")
    limit = f"limit {text_of_bytes(device.limit_bytes)}" if device.limit_bytes else "limit unknown"
    is_drawn = is_limit_drawn(shown, device.limit_bytes)
    what = "peak of each step" if device.peak_steps[0] != device.peak_steps[-1] else "peaks, no step has ended"
    title = f"{what} on {of}; {limit}" + ("" if is_drawn or not device.limit_bytes else " is above the plot")
    yield from wrapped(Text(title, style="dim"), width)
    yield from plot(shown, limit_bytes=device.limit_bytes, width=width, height=rows, moves=not is_whole)
    steps = device.peak_steps[-len(shown) :]
    end = f"step {steps[-1]}" if steps[0] != steps[-1] else "now"
    axis = f"step {1 if is_whole else steps[0]}" if steps[0] != steps[-1] else f"{len(shown)} samples ago"
    span = min(cells, len(shown))
    gap = max(1, span - len(axis) - len(end))
    yield Text(f"{'':11}{axis}{'':{gap}}{end}" if len(shown) > 1 else f"{'':11}{end}", style="dim")


def _below(inside: Inside, view: View) -> Iterator[Text]:
    if inside.command:
        yield Text(inside.command, style="dim")
    if inside.recording:
        yield Text(f"memory history {inside.recording}", style="dim")
    for note in view.notes:
        yield Text(note, style="yellow")


def _of_holder(holder: CardHolder) -> str:
    size = text_of_bytes(holder.used_bytes) if holder.used_bytes is not None else "an unknown amount"
    name = f" ({holder.name})" if holder.name else ""
    if holder.is_watched:
        whose = ", watched"
    elif holder.is_ours:
        whose = ", yours"
    else:
        whose = ", another user's" if holder.name else ", not visible from here"
    return f"{size} by process {holder.pid}{name}{whose}"


def _fitting(text: str, width: int) -> int:
    # some characters take two cells of the terminal
    count = width
    while count > 1 and Text(text[:count]).cell_len > width:
        count -= 1
    return max(1, count)


def plot(values: Sequence[int], *, limit_bytes: int, width: int, height: int, moves: bool) -> list[Text]:
    """Draw values as a bar chart of block characters, with the memory limit as a line.

    Args:
        values: the values in bytes, oldest first.
        limit_bytes: the limit in bytes; 0 if it is unknown.
        width: the width in characters, including the axis.
        height: the number of rows, at least 2.
        moves: whether to draw only the latest values, one per column; otherwise each column shows a maximum over some
            values.
    """
    cells = max(1, width - _AXIS)
    shown = list(values[-cells:]) if moves or len(values) <= cells else _spans(values, cells)
    highest = max(shown, default=0)
    is_near = limit_bytes > 0 and highest >= _NEAR * limit_bytes
    top = max(limit_bytes, highest) if is_near else max(highest + highest // 8, 1)
    levels = [round(value / top * height * _EIGHTHS) for value in shown]
    limit_row = min(height - 1, limit_bytes * height // top) if is_near else -1

    def row_of(row: int) -> Text:
        label = ""
        if row == height - 1:
            label = text_of_bytes(top)
        elif row == 0:
            label = "0"
        elif row == height // 2 and height >= 5:
            label = text_of_bytes(top * row // height)
        text = Text(f"{label:>{_AXIS - 1}} ", style="dim", no_wrap=True)
        for cell in range(cells):
            eighths = min(_EIGHTHS, max(0, levels[cell] - row * _EIGHTHS)) if cell < len(levels) else 0
            if eighths == 0 and row == limit_row:
                text.append("▔" if limit_bytes >= top else "─", style="red")
            else:
                is_short = limit_bytes > 0 and cell < len(shown) and shown[cell] >= _SHORT * limit_bytes
                text.append(_BLOCKS[eighths], style="red" if is_short else "cyan")
        return text

    return [row_of(row) for row in reversed(range(height))]


def is_limit_drawn(values: Sequence[int], limit_bytes: int) -> bool:
    """Return whether the plot of memory use shows the memory limit. Values far below the limit are plotted without
    it.
    """
    return limit_bytes > 0 and max(values, default=0) >= _NEAR * limit_bytes


def _spans(values: Sequence[int], cells: int) -> list[int]:
    edges = itertools.pairwise(cell * len(values) // cells for cell in range(cells + 1))
    return [max(values[start:stop]) for start, stop in edges]
