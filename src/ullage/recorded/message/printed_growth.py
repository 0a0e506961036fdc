"""Finds memory figures that a program prints again and again and that grow, such as one line for each step."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ullage.base.units import MIB, parse_bytes
from ullage.recorded.message.traceback import without_prefix

LONGEST_TEXT: Final = 1 << 20
"""The longest text, in characters, that is searched for growing figures. A longer log has other signs."""
_FEWEST_ROWS: Final = 5
_LEAST_RISING: Final = 0.7  # the least part of the steps from row to row in which the figure does not fall
_LEAST_GROWTH: Final = 1.25  # the last figure, as a multiple of the first
_LEAST_GROWTH_BYTES: Final = 512 * MIB
_LONGEST_ROW: Final = 300
_MOST_ROWS: Final = 20_000
_SIZE: Final = re.compile(r"(?<![\w.])(\d{1,6}(?:[.,]\d{1,4})?) ?([GM]i?B?)\b(?!/s)", re.ASCII)
_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]\d+)?", re.ASCII)
_ABOUT_MEMORY: Final = re.compile(r"mem|vram|alloc|reserv|gpu|cuda|rss", re.IGNORECASE)
_COUNTS: Final = re.compile(r"\b(?:step|iter|epoch|it\b|call|request|inference|generation|image|file)", re.IGNORECASE)
# What explains a larger figure: the work itself grows from line to line, or the line is not about the memory in use.
_GROWS_WITH: Final = re.compile(
    r"download|shard|load|\d+%\||\bB/s\b|size|weights|checkpoint|batch|seq|len|layer|part\b|offset|width|height|resol"
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


def growth_in(text: str) -> PrintedGrowth | None:
    """Return the memory figures in a text that grow the most, or None if none grow steadily."""
    if len(text) > LONGEST_TEXT:
        return None
    series: dict[tuple[str | None, str, int], list[tuple[int, int]]] = {}
    header = -_ROWS_OF_A_HEADER
    for row, line in enumerate(text.split("\n")[:_MOST_ROWS], 1):
        for part in line.split("\r"):  # progress bars write over their line
            if len(part) > _LONGEST_ROW:
                continue
            owner, rest = without_prefix(part)
            is_counted = _COUNTS.search(rest) is not None and _GROWS_WITH.search(rest) is None
            if is_counted and _SIZE.search(rest) is None:
                header = row
            in_table = rest.lstrip().startswith("|") and row - header < _ROWS_OF_A_HEADER
            if in_table or (is_counted and _ABOUT_MEMORY.search(rest) is not None):
                _add(series, owner, row, rest)
    found = [growth for rows in series.values() if (growth := _growth_of(rows)) is not None]
    return max(found, key=lambda growth: growth.last_bytes - growth.first_bytes, default=None)


def _add(
    series: dict[tuple[str | None, str, int], list[tuple[int, int]]], owner: str | None, row: int, line: str
) -> None:
    """Add the sizes in a line to the series of lines that differ only in their numbers."""
    form = " ".join(_NUMBER.sub("#", line).split())
    for index, size in enumerate(list(_SIZE.finditer(line))[:4]):
        size_bytes = parse_bytes(f"{size[1].replace(',', '.')} {_unit(size[2])}")
        series.setdefault((owner, form, index), []).append((row, size_bytes))


def _unit(unit: str) -> str:
    return unit if unit.endswith("B") else f"{unit.removesuffix('i')}iB"


def _growth_of(rows: Sequence[tuple[int, int]]) -> PrintedGrowth | None:
    if len(rows) < _FEWEST_ROWS:
        return None
    sizes = [size for _, size in rows]
    first, last = sizes[0], sizes[-1]
    steps = [after >= before for before, after in itertools.pairwise(sizes)]
    rises = sum(after > before for before, after in itertools.pairwise(sizes))
    if sum(steps) < _LEAST_RISING * len(steps) or rises < len(steps) // 2:
        return None
    if last < _LEAST_GROWTH * first or last - first < _LEAST_GROWTH_BYTES:
        return None
    return PrintedGrowth(row=rows[0][0], last_row=rows[-1][0], first_bytes=first, last_bytes=last, count=len(rows))
