"""The drivers whose choice of memory addresses can be emulated.

The rules are in emulator/cuda/address.c.
"""

from typing import Final, Literal, get_args

# The order of `enum placement` in the C header of the emulator.
Placement = Literal["linux", "wsl", "windows", "linux-host"]
PLACEMENTS: Final[tuple[Placement, ...]] = get_args(Placement)
