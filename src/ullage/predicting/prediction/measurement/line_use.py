"""Group the live memory at a point in time by source line, or by module and library line.

If one line of the user's, such as `trainer.train()`, calls into a library that allocates nearly everything, that line
explains little. The memory is then grouped by the running module and by the innermost line of the library's code.
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
    """One live memory block: its role, its size, and the source line and module that allocated it."""

    role: str
    line: Line | None
    """The line of the user's code that led to the block's allocation."""
    librarys: Line | None
    """The innermost line of library code that allocated the block for the user's line."""
    module: str
    phase: str
    size_bytes: int


def lines_of(uses: Sequence[BlockUse]) -> list[LineUse]:
    """Return the total size of live blocks for each role and each line of the user's code. The largest total is
    first.
    """
    keys = [(use.role, use.line, use.phase, "") for use in uses]
    return _summed(keys, uses)


def library_lines_of(uses: Sequence[BlockUse]) -> list[LineUse]:
    """Return the total size of live blocks for each role, module and library line. The largest total is first. Return
    an empty list if the lines of the user's code already explain the memory.
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
