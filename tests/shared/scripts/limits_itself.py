"""Allow this process a gigabyte and a half of the card, and ask for more: by a call, or by its settings."""

import os
import sys

how, handles = sys.argv[1], sys.argv[2] == "handled"
LIMIT = 1537 << 20
if how == "settings":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "per_process_memory_fraction:0.1"

import torch  # noqa: E402  the settings come first

if how == "call":
    share = (LIMIT + 0.5) / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, share))
held = [torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(5)]
try:
    torch.empty((257 << 20) - 1024, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    if not handles:
        raise
