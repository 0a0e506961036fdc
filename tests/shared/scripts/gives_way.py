"""A script that does less than it was asked for: `gives_way.py halves|skips --batch-size N`."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("how", choices=["halves", "skips"])
parser.add_argument("--batch-size", type=int, required=True)
options = parser.parse_args()

model = nn.Sequential(nn.Linear(16384, 16384), nn.ReLU(), nn.Linear(16384, 16)).to("cuda", torch.bfloat16)
model[0].weight.requires_grad = False
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
size = options.batch_size
for _ in range(4):
    if options.how == "skips" and size > 1500:  # a loader of 1,500 samples that drops its last batch
        torch.empty(1 << 20, device="cuda")
        continue
    while True:
        try:
            # 64 KiB a sample and copy: about 1,600 samples fill what is left of a card of 1 GiB
            kept = [torch.empty(size, 1 << 15, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
            model(torch.ones(size, 16384, device="cuda", dtype=torch.bfloat16)).sum().backward()
            break
        except torch.cuda.OutOfMemoryError:
            size //= 2
    optimizer.step()
    optimizer.zero_grad()
    del kept
