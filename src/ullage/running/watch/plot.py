"""Draws peaks as columns of block characters, with the limit as a line, in a given number of letters."""

import itertools
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from ullage.base.units import text_of_bytes

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_EIGHTHS: Final = len(_BLOCKS) - 1
_AXIS: Final = 11  # "1023.9 MiB "
_NEAR: Final = 0.25  # of the limit; what stays below it is drawn larger, and the limit is left out
_SHORT: Final = 0.9  # of the limit


def plot(values: Sequence[int], *, limit_bytes: int, width: int, height: int, moves: bool) -> list[Text]:
    """Draw levels in bytes.

    Args:
        values: the levels, oldest first.
        limit_bytes: the limit of the levels; 0 if none is known.
        width: the number of letters in a row, including the axis.
        height: the number of rows, at least 2.
        moves: whether to draw the latest levels, one per column; otherwise all levels, the highest of each column's
            span.
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
    """Tell whether the limit is near enough to these levels to be drawn."""
    return limit_bytes > 0 and max(values, default=0) >= _NEAR * limit_bytes


def _spans(values: Sequence[int], cells: int) -> list[int]:
    edges = itertools.pairwise(cell * len(values) // cells for cell in range(cells + 1))
    return [max(values[start:stop]) for start, stop in edges]
