"""Train a small transformer on every rank of a launcher: ranks.py [--batch-size N]. Alone it trains on one card."""

import argparse
import os

import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
options = parser.parse_args()

torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
torch.manual_seed(0)
model = nn.Sequential(*(nn.TransformerEncoderLayer(512, 8, batch_first=True) for _ in range(4))).cuda()
if "RANK" in os.environ:
    distributed.init_process_group("nccl")
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(1000):
    model(torch.randn(options.batch_size, 128, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
