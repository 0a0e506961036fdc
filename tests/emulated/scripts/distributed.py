"""One process of a data-parallel run, for torchrun."""

import os

import torch
import torch.distributed as distributed
from torch import nn

distributed.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
said = f"rank {rank} {torch.cuda.get_device_name()} {torch.cuda.max_memory_allocated(rank) > 0}\n"
os.write(1, said.encode())  # in one piece: two processes write to one place
distributed.destroy_process_group()
