"""Autocast keeps a bf16 copy of every weight until its context ends, even if every block is checkpointed."""

import sys

import torch
from torch.utils.checkpoint import checkpoint

model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(16))).cuda()
for _ in range(2):  # in the second forward pass, the gradients of the first exist
    x = torch.randn(64, 4096, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled="changed" not in sys.argv):
        for block in model:
            x = checkpoint(block, x, use_reentrant=False)
    x.float().sum().backward()
