"""Reads the installed PyTorch's facts in a child process: settings that it refuses may end the process.

It prints a line for the cards and one for torch; where a card is named, that one is emulated.
CUDA is not initialised: the allocator has read its settings before, and the driver is asked by NVML.
"""

import json
import os
import sys
import warnings
from dataclasses import asdict
from typing import Any

from ullage.running.diagnosis.facts import Torch
from ullage.running.diagnosis.nvml import read_cards


def read_torch(*, is_here: bool = False) -> Torch:
    """Return torch's facts; import it where needed. `is_here`: whether this is the user's own process.

    Raises:
        ImportError: torch cannot be imported.
        OSError: a library of its cannot be loaded.
    """
    import torch

    facts: dict[str, Any] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "is_here": is_here,
    }
    if not hasattr(torch._C, "_cuda_memorySnapshot"):  # a build for the CPU
        return Torch(**facts)
    facts["architectures"] = tuple((torch._C._cuda_getArchFlags() or "").split())
    try:
        facts["settings"] = _settings(torch._C)
    except Exception as error:  # which one depends on the version: ValueError, RuntimeError
        facts["settings_error"] = str(error).splitlines()[0]
    if is_here and hasattr(torch._C, "_cuda_hostMemoryStats"):
        # torch.cuda.host_memory_stats says nothing until CUDA is initialised, and pinning does not do that.
        facts["pinned_bytes"] = torch._C._cuda_hostMemoryStats()["allocated_bytes"]["current"]
    return Torch(**facts)


def _settings(binding: Any) -> str | None:
    """Return the settings text that the allocator has read (in snapshots before 2.15); None where there is none."""
    ask = getattr(binding, "_accelerator_getAllocatorSettings", None)
    if ask is not None:
        return str(ask())
    try:
        read = binding._cuda_memorySnapshot(None)["allocator_settings"]
    except RuntimeError as error:
        if "cudaMallocAsync" in str(error):  # this allocator has no snapshots
            return None
        raise
    return str(read.get("PYTORCH_CUDA_ALLOC_CONF", ""))


def main() -> None:
    """Print what can be told of driver, cards and torch, as two lines of JSON; argv may name a card to emulate."""
    gpu = sys.argv[1] if len(sys.argv) > 1 else None
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what torch prints is no answer
    warnings.simplefilter("ignore")
    if gpu is not None:
        from ullage.gpu.emulator import emulate

        emulate(gpu)
    driver, cards = read_cards()
    found = {"driver": None if driver is None else asdict(driver), "cards": [asdict(card) for card in cards]}
    print(json.dumps(found), file=answers, flush=True)
    print(json.dumps(asdict(read_torch())), file=answers, flush=True)
