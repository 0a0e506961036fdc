"""What was alive at a moment, by line: the user's own, or, where one of these leads to it all, module and library line.

A script that hands its model to a trainer has one line, `trainer.train()`. What the memory is of, the module that ran
says then, and the innermost line of the library's code.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ullage.gpu.tracing.source import Line
from ullage.predicting.prediction.data.prediction import LineUse

_MOST: Final = 0.5
"""The share of the memory from which on a line counts as the one that leads to it all."""
_NUMBERS: Final = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockUse:
    """One live block: what it is for, and where it was made."""

    role: str
    line: Line | None
    """The user's line."""
    librarys: Line | None
    """The innermost line of a library's that the user's line has led to."""
    module: str
    phase: str
    size_bytes: int


def lines_of(uses: Sequence[BlockUse]) -> list[LineUse]:
    """Sum blocks by role and user's line, the most first."""
    keys = [(use.role, use.line, use.phase, "") for use in uses]
    return _summed(keys, uses)


def library_lines_of(uses: Sequence[BlockUse]) -> list[LineUse]:
    """Sum blocks by role, module and library line, the most first; empty where users' own lines tell enough."""
    if not _leads_one_line(uses):
        return []
    keys = [(use.role, use.librarys or use.line, use.phase, _NUMBERS.sub(".*", use.module)) for use in uses]
    return _summed(keys, uses)


def _leads_one_line(uses: Sequence[BlockUse]) -> bool:
    """Tell whether one of the user's lines leads to most of the memory, through a library."""
    by_line: Counter[Line | None] = Counter()
    through: defaultdict[Line | None, int] = defaultdict(int)
    for use in uses:
        by_line[use.line] += use.size_bytes
        if use.librarys is not None:
            through[use.line] += use.size_bytes
    line, size = max(by_line.items(), key=lambda item: item[1], default=(None, 0))
    # What backward allocates has no stack, and so no library's line.
    return line is not None and size > _MOST * by_line.total() and through[line] > 0


def _summed(keys: Sequence[tuple[str, Line | None, str, str]], uses: Sequence[BlockUse]) -> list[LineUse]:
    sizes: Counter[tuple[str, Line | None, str, str]] = Counter()
    counts: Counter[tuple[str, Line | None, str, str]] = Counter()
    for key, use in zip(keys, uses, strict=True):
        sizes[key] += use.size_bytes
        counts[key] += 1
    return [
        LineUse(
            role=role,
            file=line.file if line else None,
            line=line.line if line else None,
            function=line.function if line else None,
            phase=phase,
            bytes=size,
            blocks=counts[role, line, phase, module],
            module=module,
        )
        for (role, line, phase, module), size in sizes.most_common()
    ]
