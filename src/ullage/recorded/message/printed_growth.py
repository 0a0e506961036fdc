"""Finds memory figures that a program prints again and again and that grow, such as one line for each step.

A log is searched piece by piece. The search keeps a few numbers for each form of line, however long the log is.
"""

import re
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ullage.base.units import MIB, parse_bytes
from ullage.recorded.message.traceback import without_prefix

_FEWEST_ROWS: Final = 5
_LEAST_RISING: Final = 0.7  # the least part of the steps from row to row in which the figure does not fall
_LEAST_GROWTH: Final = 1.25  # the last figure, as a multiple of the first
_LEAST_GROWTH_BYTES: Final = 512 * MIB
_LONGEST_ROW: Final = 300
_MOST_FORMS: Final = 20_000  # a log that has more forms of lines does not print a figure for each step
_SIZE: Final = re.compile(r"(?<![\w.])(\d{1,6}(?:[.,]\d{1,4})?) ?([GM]i?B?)\b(?!/s)", re.ASCII)
_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]\d+)?", re.ASCII)
_ABOUT_MEMORY: Final = re.compile(r"mem|vram|alloc|reserv|gpu|cuda|rss", re.IGNORECASE)
_COUNTS: Final = re.compile(r"\b(?:step|iter|epoch|it\b|call|request|inference|generation|image|file)", re.IGNORECASE)
# What explains a larger figure: the work itself grows from line to line, or the line is not about the memory in use.
_GROWS_WITH: Final = re.compile(
    r"download|shard|load|\d%\||\bB/s\b|size|weights|checkpoint|batch|seq|len|layer|part\b|offset|width|height|resol"
    r"|tokens|wrote|writ|disk|chunk|free|avail|left|remain",
    re.IGNORECASE,
)
_ROWS_OF_A_HEADER: Final = 40  # the most rows of a table that one header describes


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedGrowth:
    """Memory figures of one kind that grow from line to line."""

    row: int
    """The line number of the first figure, counted from 1."""
    last_row: int
    first_bytes: int
    last_bytes: int
    count: int
    """The number of lines."""


class GrowthSearch:
    """Searches a log, piece by piece, for memory figures that grow steadily."""

    def __init__(self) -> None:
        self._series: dict[tuple[str | None, str, int], _FigureSeries] = {}
        self._of_memory: dict[str, bool] = {}
        self._row = 1
        self._header = -_ROWS_OF_A_HEADER
        # Lines without a size. Whether one is a header is decided when a row of a table follows, which is rare.
        self._above: deque[tuple[int, str]] = deque(maxlen=_ROWS_OF_A_HEADER)
        self._rest = ""

    def add(self, piece: str) -> None:
        """Read the next piece of the log, which may end anywhere."""
        text = self._rest + piece
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        # The rest of a longer line is not needed, because the line is skipped.
        self._rest = text[end:][: _LONGEST_ROW + 1]
        for number, line in enumerate(text[:end].split("\n")):
            self._row += number > 0
            self._read(line)

    def growth(self) -> PrintedGrowth | None:
        """Return the memory figures that grow the most, or None if none grow steadily."""
        self._read(self._rest)
        self._rest = ""
        found = [growth for series in self._series.values() if (growth := series.growth()) is not None]
        return max(found, key=lambda growth: growth.last_bytes - growth.first_bytes, default=None)

    def _read(self, line: str) -> None:
        for part in line.split("\r"):  # progress bars write over their line
            if len(part) > _LONGEST_ROW:
                continue
            # The first two conditions only save time: most lines of a log fail them.
            if ("G" not in part and "M" not in part) or _SIZE.search(part) is None:
                self._above.append((self._row, part))
                continue
            owner, rest = without_prefix(part)
            form = " ".join(_NUMBER.sub("#", rest).split())
            if self._is_in_table(rest) or self._is_of_memory(form, rest):
                self._add(owner, form, rest)

    def _is_of_memory(self, form: str, line: str) -> bool:
        """Return whether lines of a form print memory figures; of each form, the first line is examined."""
        known = self._of_memory.get(form)
        if known is None:
            known = _is_counted(line) and _ABOUT_MEMORY.search(line) is not None
            if len(self._of_memory) < _MOST_FORMS:
                self._of_memory[form] = known
        return known

    def _is_in_table(self, line: str) -> bool:
        if not line.lstrip().startswith("|"):
            return False
        headers = (row for row, text in reversed(self._above) if _is_counted(without_prefix(text)[1]))
        self._header = next(headers, self._header)
        self._above.clear()
        return self._row - self._header < _ROWS_OF_A_HEADER

    def _add(self, owner: str | None, form: str, line: str) -> None:
        """Add the sizes in a line to the series of lines that differ only in their numbers."""
        for index, size in enumerate(list(_SIZE.finditer(line))[:4]):
            size_bytes = _bytes_of(size[1], size[2])
            series = self._series.get((owner, form, index))
            if series is not None:
                series.add(self._row, size_bytes)
            elif len(self._series) < _MOST_FORMS:
                self._series[owner, form, index] = _FigureSeries(self._row, self._row, size_bytes, size_bytes)


@dataclass(slots=True)
class _FigureSeries:
    first_row: int
    last_row: int
    first_bytes: int
    last_bytes: int
    count: int = 1
    rises: int = 0
    falls: int = 0

    def add(self, row: int, size_bytes: int) -> None:
        self.count += 1
        self.rises += size_bytes > self.last_bytes
        self.falls += size_bytes < self.last_bytes
        self.last_row, self.last_bytes = row, size_bytes

    def growth(self) -> PrintedGrowth | None:
        first, last, steps = self.first_bytes, self.last_bytes, self.count - 1
        is_steady = steps - self.falls >= _LEAST_RISING * steps and self.rises >= steps // 2
        is_large = last >= _LEAST_GROWTH * first and last - first >= _LEAST_GROWTH_BYTES
        if self.count < _FEWEST_ROWS or not is_steady or not is_large:
            return None
        return PrintedGrowth(
            row=self.first_row, last_row=self.last_row, first_bytes=first, last_bytes=last, count=self.count
        )


def _is_counted(line: str) -> bool:
    return _COUNTS.search(line) is not None and _GROWS_WITH.search(line) is None


@lru_cache(maxsize=1 << 12)
def _bytes_of(number: str, unit: str) -> int:
    return parse_bytes(f"{number.replace(',', '.')} {unit if unit.endswith('B') else unit.removesuffix('i') + 'iB'}")
