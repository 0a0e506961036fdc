"""RMM: its pool as the allocator of torch, and a training step in it."""

import rmm
import torch
from counted import Counted
from rmm.allocators.torch import rmm_torch_allocator

POOL_BYTES = 1 << 30


def run(counted: Counted) -> None:
    rmm.reinitialize(pool_allocator=True, initial_pool_size=POOL_BYTES)
    counted.equal("the pool", counted.look(), POOL_BYTES)
    pool = torch.cuda.MemPool(rmm_torch_allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        layer = torch.nn.Linear(4096, 4096, device="cuda")
        layer(torch.randn(64, 4096, device="cuda")).pow(2).mean().backward()
