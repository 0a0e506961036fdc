"""The placement of segments by cudaMalloc: rules read off recordings of real cards, and two rules for proofs.

Addresses decide one thing only: up to torch 2.11 the lower of several equally large free blocks is taken. The core has
the rules themselves (allocator/_core/address_space.hpp). They do not know what else of the process lies in the address
space; `foretell` says how often they are right.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from ullage.recorded.allocator._allocator import foretell as _foretell
from ullage.recorded.program import Column, Program

PLACEMENTS: Final[Mapping[str, str]] = {
    "linux": "chunks of whole 32 MiB, each in the highest hole or below all; what is left of them serves first, from "
    "the lowest address on; an empty one is given back",
    "windows": "the lowest gap that is large enough, in steps of 2 MiB (WSL too)",
    "ascending": "each above the one before, no address twice",
    "descending": "each below the one before, no address twice",
}
"""The rules by name, in the core's order (driver.hpp). No real system uses the last two."""
_LINUX_FROM: Final = 1 << 44
"""Linux maps from 0x7f... down; recordings of Windows and WSL lie far below."""


def placement_of(program: Program) -> str:
    """Return the rule of the system whose addresses a program has: "linux" where it has none."""
    known = [*program.recorded_addresses, *(segment.address for segment in program.start)]
    return "windows" if known and max(known) < _LINUX_FROM else "linux"


def foretell(address: Column, size: Column, is_new: Column, placement: str) -> Column:
    """Predict the address of each segment by a rule, given the real addresses of all earlier segments.

    Under "linux" a gap that the driver passed over once is taken for somebody else's from then on.

    Args:
        address: addresses of the segments in the order of the driver's calls.
        size: bytes, whole pages of 2 MiB; negative where a segment is given back.
        is_new: 1 where the driver placed a segment; 0 where it was there before, which foretells nothing.
        placement: one of `PLACEMENTS`.

    Returns:
        Addresses; -1 where nothing was placed.
    """
    rule = list(PLACEMENTS).index(placement)
    address, size, is_new = (np.ascontiguousarray(column, dtype=np.int64) for column in (address, size, is_new))
    return _foretell(address, size, is_new, rule)
