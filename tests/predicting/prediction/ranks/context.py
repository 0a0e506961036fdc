"""Attention in a ring: each rank has a part of every sequence. `context.py [data]`."""

import sys

import torch
from common import Block, begin, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

rank, size = begin()
data = 2 if "data" in sys.argv else 1
mesh = init_device_mesh("cuda", (data, size // data), mesh_dim_names=("data", "context"))
model = nn.Sequential(*(Block(128) for _ in range(3))).cuda().bfloat16()
if data > 1:
    fully_shard(model, mesh=mesh["data"])
optimizer = torch.optim.AdamW(model.parameters())


def step(number: int) -> None:
    """Cut a batch along its sequences, and train on this rank's part."""
    batch = torch.randn(2, 256, 128, device="cuda", dtype=torch.bfloat16)
    with (
        sdpa_kernel([SDPBackend.FLASH_ATTENTION]),
        context_parallel(mesh["context"], buffers=[batch], buffer_seq_dims=[1]),
    ):
        model(batch).square().mean().backward()


train(step, optimizer)
