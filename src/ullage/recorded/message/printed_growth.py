"""Finds memory figures that a program prints again and again and that grow, such as one line for each step."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ullage.base.units import MIB, parse_bytes

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
_LOADING: Final = re.compile(r"download|shard|loading|\d+%\||\bB/s\b|size|weights|checkpoint", re.IGNORECASE)


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
    series: dict[tuple[str, int], list[tuple[int, int]]] = {}
    is_about = False
    for row, line in enumerate(text.splitlines()[:_MOST_ROWS], 1):
        is_about = is_about or _ABOUT_MEMORY.search(line) is not None
        if not is_about or len(line) > _LONGEST_ROW or _LOADING.search(line) is not None:
            continue
        sizes = [parse_bytes(f"{size[1].replace(',', '.')} {_unit(size[2])}") for size in _SIZE.finditer(line)]
        if not sizes:
            continue
        form = " ".join(_NUMBER.sub("#", line).split())
        for index, size in enumerate(sizes[:4]):
            series.setdefault((form, index), []).append((row, size))
    found = [growth for rows in series.values() if (growth := _growth_of(rows)) is not None]
    return max(found, key=lambda growth: growth.last_bytes - growth.first_bytes, default=None)


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
