"""The memory profiles of kkaitlyn111/cs336-a2-systems, in one process as its script makes them.

    kkaitlyn.py mixed|fp32

The script has the precision as a constant, which was changed between two runs; "mixed" is the script as it is. For
"fp32" each of its runs is given the other precision.
"""

import functools
import sys

import torch
import undrawn  # noqa: F401  for what it does when imported
import uninstalled  # noqa: F401  for what it does when imported
from cs336_systems import benchmark

if sys.argv[1] == "fp32":
    torch.set_float32_matmul_precision("high")
    one_run = benchmark.run_memory_foward_fullstep

    @functools.wraps(one_run)
    def in_fp32(**settings: object) -> object:
        """Make one profile as the script asks for, in another precision."""
        return one_run(**{**settings, "dtype": torch.float32, "mixed_precision": False})

    benchmark.run_memory_foward_fullstep = in_fp32
benchmark.profile_memory_forward_fullstep()
