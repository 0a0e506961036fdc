"""The holder of growing memory, from two results of `ullage.owners` that are compared."""

import re
from typing import Final

from ullage.base.errors import UsageError

_LEAST_BYTES: Final = 1 << 10
_PLACE: Final = re.compile(r"\[\d+\]")
_REPEATED_PART: Final = re.compile(r"(\[\*\]| -> [^ ]+)\1{2,}")
"""A repeated part of a path, such as errors that each refer to the one before: it gets longer as the leak grows."""

HeldByPath = dict[str, tuple[int, int]]
"""The blocks and bytes held by each path from a variable, with indices replaced by a star."""


def held_now(device: int) -> HeldByPath:
    """Return what is held on a device now; empty if that cannot be found out."""
    try:
        from ullage.training.ownership.owners import owners
    except ImportError:
        return {}
    held: HeldByPath = {}
    try:
        rows = owners(min_bytes=_LEAST_BYTES, device=device)
    except UsageError:
        return {}
    for row in rows:
        path = _REPEATED_PART.sub(r"\1\1...", _PLACE.sub("[*]", row.path))
        blocks, n_bytes = held.get(path, (0, 0))
        held[path] = blocks + row.blocks, n_bytes + row.bytes
    return held


def holder_of_growth(before: HeldByPath, after: HeldByPath, *, by_blocks: bool) -> str | None:
    """Return the path whose blocks, or bytes, have grown most; None if none has grown."""
    growth = {
        path: (blocks - before.get(path, (0, 0))[0], n_bytes - before.get(path, (0, 0))[1])
        for path, (blocks, n_bytes) in after.items()
    }
    # What a loop's variable holds may have become larger by more than a leak has kept: in bytes, not in blocks.
    best = max(growth, key=lambda path: growth[path] if by_blocks else growth[path][::-1], default=None)
    return best if best is not None and growth[best][0 if by_blocks else 1] > 0 else None
