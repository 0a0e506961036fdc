"""nvidia-ml-py: what NVML says of the GPU's memory before and after a tensor is allocated."""

import pynvml
import torch
from counted import Counted

BYTES = 1 << 30


def run(counted: Counted) -> None:
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    before = pynvml.nvmlDeviceGetMemoryInfo(card).used
    tensor = torch.empty(BYTES, dtype=torch.uint8, device="cuda")
    counted.equal("one tensor, as NVML sees it", pynvml.nvmlDeviceGetMemoryInfo(card).used - before, tensor.nbytes)
