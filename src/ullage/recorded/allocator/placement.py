"""The rules by which cudaMalloc chooses segment addresses, derived from recordings of real GPUs.

Addresses influence only one decision: up to torch 2.11, the block with the lowest address is chosen among free blocks
of equal size. The core implements the rules (allocator/_core/address_space.hpp). They do not know the other mappings in
the process's address space; `foretell` measures how often their predictions are right.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from ullage.recorded.allocator._allocator import foretell as _foretell
from ullage.recorded.program import Column, Program

PLACEMENTS: Final[Mapping[str, str]] = {
    "linux": "chunks whose size is a multiple of 32 MiB, each in the highest hole or below all mappings; free memory "
    "in a chunk is used first, starting at its lowest address; an empty chunk is freed",
    "windows": "the lowest gap that is large enough, in steps of 2 MiB (also on WSL)",
    "ascending": "each segment above the previous segment; no address is used twice",
    "descending": "each segment below the previous segment; no address is used twice",
}
"""The rules by which a driver chooses segment addresses, by name. The last two exist only for tests."""
# The lowest address that Linux gives to memory mappings. Linux places them from 0x7f... downward. Addresses on Windows
# and WSL are far lower.
_LINUX_FROM: Final = 1 << 44


def placement_of(program: Program) -> str:
    """Return the name of the rule by which the driver chose the recorded addresses. Without addresses, it is
    "linux".
    """
    known = [*program.recorded_addresses, *(segment.address for segment in program.start)]
    return "windows" if known and max(known) < _LINUX_FROM else "linux"


def foretell(address: Column, size: Column, is_new: Column, placement: str) -> Column:
    """Predict the address of each segment by a placement rule, given the real addresses of all earlier segments.

    With "linux", a gap that the driver did not use although it was large enough is from then on taken to be occupied.

    Args:
        address: addresses of the segments in the order of the driver calls.
        size: bytes, in whole pages of 2 MiB; negative if a segment is freed.
        is_new: 1 if the driver placed a segment; 0 if the segment existed before, in which case nothing is predicted.
        placement: one of `PLACEMENTS`.

    Returns:
        Addresses; -1 for an entry that places nothing.
    """
    rule = list(PLACEMENTS).index(placement)
    address, size, is_new = (np.ascontiguousarray(column, dtype=np.int64) for column in (address, size, is_new))
    return _foretell(address, size, is_new, rule)
