"""One rank of a distributed run: `ranks.py ddp|fsdp2|tensor [gloo]`. It prints its peak."""

import os
import sys
from contextlib import suppress

import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

how = sys.argv[1]
distributed.init_process_group("cpu:gloo,cuda:nccl" if "gloo" in sys.argv else "nccl")
rank, size = int(os.environ["LOCAL_RANK"]), distributed.get_world_size()
torch.cuda.set_device(rank)
mesh = init_device_mesh("cuda", (size,))
with torch.device("cuda"):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(4)))
blocks = list(model)
if how == "ddp":
    model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
elif how == "fsdp2":
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
else:
    for block in blocks:
        parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters())
names: list = [None] * size
distributed.all_gather_object(names, {"rank": distributed.get_rank()})
for _ in range(3):
    model(torch.randn(16, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    total = torch.ones((), device="cuda")
    distributed.all_reduce(total)
    if "gloo" in sys.argv:
        distributed.all_reduce(torch.ones(()))
    distributed.barrier()
    # What a collective used is let go by NCCL's watchdog, a thread that looks a few times a second: too late for the
    # next step's peak on a busy machine, and the buckets of DDP are there twice. Its list of works is waited for.
    for group in distributed.distributed_c10d._world.pg_map:
        with suppress(RuntimeError):  # torch 2.6: a group with a backend for the host and one for the card has no list
            group._wait_for_pending_works()
stats = torch.cuda.memory_stats(rank)
said = f"{distributed.get_rank()} {stats['allocated_bytes.all.peak']} {stats['reserved_bytes.all.peak']}\n"
os.write(1, said.encode())  # in one piece: several processes write to one place
distributed.destroy_process_group()
