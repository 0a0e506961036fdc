"""Cells of text in columns on a terminal, so wide that no character of a cell is lost.

The widths are computed here, not left to rich: where its columns have to shrink below the least width that they were
given, it cuts off what stands beyond.
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
    """The texts of one column from the top down, with its heading where it has one."""

    texts: tuple[Text, ...]
    heading: str = ""
    is_right: bool = False
    """Whether the texts end at the column's right edge, as numbers do."""
    keeps_short_whole: bool = True
    """Whether texts of a column that has no long one stay on one line each; otherwise only words do."""

    @property
    def whole(self) -> int:
        """The width at which no text is wrapped."""
        lines = [line for text in (self.heading, *(text.plain for text in self.texts)) for line in text.splitlines()]
        return max(map(cell_len, lines), default=0)

    @property
    def least(self) -> int:
        """The width at which no word is broken, or none of the texts that are to stay whole."""
        if self.keeps_short_whole and self.whole <= _UNWRAPPED_CELLS:
            return self.whole
        words = [word for text in (self.heading, *(text.plain for text in self.texts)) for word in text.split()]
        return max(map(cell_len, words), default=0)


def in_columns(columns: Sequence[Column], width: int, *, gap: int) -> Grid | None:
    """Return the columns side by side, `gap` spaces between them; None where that needs more than the width."""
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
    """Return the columns' widths: the widest are narrowed to one width, none below its least."""
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
