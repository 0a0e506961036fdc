"""Arrange table cells in terminal columns. The columns are wide enough to show every character of a cell.

The widths are computed here and not by rich. If a column is narrower than its smallest width, rich cuts text off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.table import Table as Grid
from rich.text import Text

_UNWRAPPED_CELLS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A table column: its heading, if it has one, and its texts from top to bottom."""

    texts: tuple[Text, ...]
    heading: str = ""
    is_right: bool = False
    """Whether the texts of the column are right-aligned, as numbers usually are."""
    keeps_short_whole: bool = True
    """Whether the texts of the column must not wrap if the column is narrow. Otherwise, text may wrap between words."""

    @property
    def whole(self) -> int:
        """The smallest width in characters at which no text of the column has to wrap."""
        lines = [line for text in (self.heading, *(text.plain for text in self.texts)) for line in text.splitlines()]
        return max(map(cell_len, lines), default=0)

    @property
    def least(self) -> int:
        """The smallest width in characters at which no word is broken and no text wraps that must not wrap."""
        if self.keeps_short_whole and self.whole <= _UNWRAPPED_CELLS:
            return self.whole
        words = [word for text in (self.heading, *(text.plain for text in self.texts)) for word in text.split()]
        return max(map(cell_len, words), default=0)


def in_columns(columns: Sequence[Column], width: int, *, gap: int) -> Grid | None:
    """Return a grid of the columns with `gap` spaces between them. None: the columns do not fit into the width."""
    columns = [column for column in columns if column.whole]
    available = width - gap * (len(columns) - 1)
    least, whole = [column.least for column in columns], [column.whole for column in columns]
    if sum(least) > available:
        return None
    grid = Grid(
        box=None,
        padding=(0, gap, 0, 0),
        pad_edge=False,
        header_style="dim",
        show_header=any(column.heading for column in columns),
    )
    for column, cells in zip(columns, _widths(least, whole, available), strict=True):
        grid.add_column(
            Text(column.heading), justify="right" if column.is_right else "left", width=cells, overflow="fold"
        )
    for row in zip(*(column.texts for column in columns), strict=True):
        grid.add_row(*row)
    return grid


def _widths(least: Sequence[int], whole: Sequence[int], available: int) -> list[int]:
    cap = min(max(whole, default=0), available)
    while True:
        widths = [max(low, min(high, cap)) for low, high in zip(least, whole, strict=True)]
        if sum(widths) <= available:
            break
        cap -= 1
    spare = available - sum(widths)
    for number, high in enumerate(whole):
        more = min(spare, high - widths[number])
        widths[number] += more
        spare -= more
    return widths
