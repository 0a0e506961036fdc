"""FSDP2: `sharded.py [hsdp] [offload] [tensor]`: shards in groups that are copies of each other, on the host, cut."""

import sys

import torch
from common import begin, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

rank, size = begin("cpu:gloo,cuda:nccl" if "offload" in sys.argv else "nccl")
tensor = 2 if "tensor" in sys.argv else 1
copies = 2 if "hsdp" in sys.argv else 1
mesh = init_device_mesh(
    "cuda", (copies, size // copies // tensor, tensor), mesh_dim_names=("replicate", "shard", "tensor")
)
with torch.device("cuda"):
    # 515 rows are shared out unevenly: the last rank has fewer.
    model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(3)))
    model.append(nn.Linear(512, 515))
if tensor > 1:
    for block in list(model)[:-1]:
        parallelize_module(block, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
inner = mesh["replicate", "shard"] if copies > 1 else mesh["shard"]
offload = CPUOffloadPolicy() if "offload" in sys.argv else OffloadPolicy()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in [*model, model]:
    fully_shard(block, mesh=inner, offload_policy=offload, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters())


def step(number: int) -> None:
    """Train on one batch, with the norm of gradients bounded where they are all of one mesh."""
    model(torch.randn(16, 512, device="cuda")).float().square().mean().backward()
    if tensor == 1:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


train(step, optimizer)
