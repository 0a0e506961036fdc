"""Hold memory of the GPU, and run another script meanwhile: `held.py MIB SCRIPT [ARGUMENT ...]`.

What a script needs and what is held add up exactly: this brings any script as close to the GPU's limit as wanted.
"""

import runpy
import sys

import torch

held = torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device="cuda")
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
