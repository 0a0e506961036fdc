"""Examines the installed PyTorch in a child process. Invalid settings may end that process.

The child process prints two lines of JSON: the GPUs, and the facts about PyTorch. It does not initialise CUDA.
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
    """Import torch and return facts about it.

    Args:
        is_here: whether this is the user's own process.

    Raises:
        ImportError: torch cannot be imported.
        OSError: a library of PyTorch cannot be loaded.
    """
    import torch

    facts: dict[str, Any] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "is_here": is_here,
    }
    if not hasattr(torch._C, "_cuda_memorySnapshot"):  # a CPU-only build
        return Torch(**facts)
    facts["architectures"] = tuple((torch._C._cuda_getArchFlags() or "").split())
    try:
        facts["settings"] = _settings(torch._C)
    except Exception as error:  # ValueError or RuntimeError, depending on the version
        facts["settings_error"] = str(error).splitlines()[0]
    if is_here and hasattr(torch._C, "_cuda_hostMemoryStats"):
        # torch.cuda.host_memory_stats returns nothing until CUDA is initialised, and pinning memory does not initialise
        # it.
        facts["pinned_bytes"] = torch._C._cuda_hostMemoryStats()["allocated_bytes"]["current"]
    return Torch(**facts)


def _settings(binding: Any) -> str | None:
    ask = getattr(binding, "_accelerator_getAllocatorSettings", None)
    if ask is not None:
        return str(ask())
    try:
        read = binding._cuda_memorySnapshot(None)["allocator_settings"]
    except RuntimeError as error:
        if "cudaMallocAsync" in str(error):  # this allocator does not support snapshots
            return None
        raise
    return str(read.get("PYTORCH_CUDA_ALLOC_CONF", ""))


def main() -> None:
    """Print the facts about the GPUs and about PyTorch as two lines of JSON."""
    gpu = sys.argv[1] if len(sys.argv) > 1 else None
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # PyTorch's own output must not appear between the two lines
    warnings.simplefilter("ignore")
    if gpu is not None:
        from ullage.gpu.emulator import emulate

        emulate(gpu)
    driver, cards = read_cards()
    found = {"driver": None if driver is None else asdict(driver), "cards": [asdict(card) for card in cards]}
    print(json.dumps(found), file=answers, flush=True)
    print(json.dumps(asdict(read_torch())), file=answers, flush=True)
