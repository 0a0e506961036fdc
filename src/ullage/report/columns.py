"""Arrange table cells in terminal columns that are wide enough for every character.

The widths are computed here, because rich cuts text off in columns that are too narrow.
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
    """A table column, with an optional heading and the texts of its cells."""

    texts: tuple[Text, ...]
    heading: str = ""
    is_right: bool = False
    """Whether texts are right-aligned, as numbers usually are."""
    keeps_short_whole: bool = True
    """Whether texts stay on one line in a narrow column. Otherwise, they may wrap between words."""

    @property
    def whole(self) -> int:
        """The width in characters at which every text of the column fits on one line."""
        lines = [line for text in (self.heading, *(text.plain for text in self.texts)) for line in text.splitlines()]
        return max(map(cell_len, lines), default=0)

    @property
    def least(self) -> int:
        """The smallest width in characters at which no word is broken."""
        if self.keeps_short_whole and self.whole <= _UNWRAPPED_CELLS:
            return self.whole
        words = [word for text in (self.heading, *(text.plain for text in self.texts)) for word in text.split()]
        return max(map(cell_len, words), default=0)


def in_columns(columns: Sequence[Column], width: int, *, gap: int) -> Grid | None:
    """Arrange columns side by side with `gap` spaces between them. Return None if they do not fit into the width."""
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
