"""Group live memory by source line of the user's code, or by module and library line.

Library lines are used if one line of the user's code, such as `trainer.train()`, leads to most of the memory.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ullage.gpu.tracing.source import Line
from ullage.predicting.prediction.data.prediction import LineUse

# If no line of the user's code leads to this fraction of live memory, memory is not grouped by library lines.
_MOST: Final = 0.5
_NUMBERS: Final = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockUse:
    """A live memory block with its role, its size, its module, and its source lines."""

    role: str
    line: Line | None
    """The line of the user's code that led to the allocation."""
    librarys: Line | None
    """The innermost library line of the allocation."""
    module: str
    phase: str
    size_bytes: int


def lines_of(uses: Sequence[BlockUse]) -> list[LineUse]:
    """Return the total size of live blocks per role and line of the user's code, largest first."""
    keys = [(use.role, use.line, use.phase, "") for use in uses]
    return _summed(keys, uses)


def library_lines_of(uses: Sequence[BlockUse]) -> list[LineUse]:
    """Return the total size of live blocks per role, module and library line, largest first.

    The list is empty if the lines of the user's code already explain the memory.
    """
    if not _leads_one_line(uses):
        return []
    keys = [(use.role, use.librarys or use.line, use.phase, _NUMBERS.sub(".*", use.module)) for use in uses]
    return _summed(keys, uses)


def _leads_one_line(uses: Sequence[BlockUse]) -> bool:
    by_line: Counter[Line | None] = Counter()
    through: defaultdict[Line | None, int] = defaultdict(int)
    for use in uses:
        by_line[use.line] += use.size_bytes
        if use.librarys is not None:
            through[use.line] += use.size_bytes
    line, size = max(by_line.items(), key=lambda item: item[1], default=(None, 0))
    # Blocks that the backward pass allocates have no stack, and therefore no library line.
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
