"""A model that is compiled: `compiles.py MODE`, MODE a mode of torch.compile."""

import sys

import torch
from torch import nn

model = nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
compiled = torch.compile(model, mode=sys.argv[1])
optimizer = torch.optim.SGD(model.parameters())
while True:
    compiled(torch.randn(4096, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
