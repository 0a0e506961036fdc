"""The drivers whose memory addresses can be emulated. The file emulator/cuda/address.c contains the rules by which each
driver chooses addresses.
"""

from typing import Final, Literal, get_args

# The order of `enum placement` in the C header of the emulator.
Placement = Literal["linux", "wsl", "windows", "linux-host"]
PLACEMENTS: Final[tuple[Placement, ...]] = get_args(Placement)
