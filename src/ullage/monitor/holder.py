"""Who holds what grows: what `ullage.owners` says at two moments, compared."""

import re
from typing import Final

from ullage._errors import UsageError

_LEAST_BYTES: Final = 1 << 10
_PLACE: Final = re.compile(r"\[\d+\]")
_AGAIN: Final = re.compile(r"(\[\*\]| -> [^ ]+)\1{2,}")
"""A chain, such as errors each with the one before: as long as the leak is old."""

Held = dict[str, tuple[int, int]]
"""For each path from a variable, with places in containers left open: blocks and bytes."""


def held_now(device: int) -> Held:
    """Return what is held on a device now; nothing where that cannot be told."""
    try:
        from ullage.ownership.owners import owners
    except ImportError:
        return {}
    held: Held = {}
    try:
        rows = owners(min_bytes=_LEAST_BYTES, device=device)
    except UsageError:
        return {}
    for row in rows:
        path = _AGAIN.sub(r"\1\1...", _PLACE.sub("[*]", row.path))
        blocks, n_bytes = held.get(path, (0, 0))
        held[path] = blocks + row.blocks, n_bytes + row.bytes
    return held


def holder_of_growth(before: Held, after: Held, *, by_blocks: bool) -> str | None:
    """Return the path whose blocks, or bytes, have grown most; None where none has."""
    growth = {
        path: (blocks - before.get(path, (0, 0))[0], n_bytes - before.get(path, (0, 0))[1])
        for path, (blocks, n_bytes) in after.items()
    }
    # What a loop's variable holds may have become larger by more than a leak has kept: in bytes, not in blocks.
    best = max(growth, key=lambda path: growth[path] if by_blocks else growth[path][::-1], default=None)
    return best if best is not None and growth[best][0 if by_blocks else 1] > 0 else None
