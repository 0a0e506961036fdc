"""Layers are computed again in the backward pass; what they begin with is kept for it, within the step."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

layers = nn.ModuleList(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(4)).cuda()
optimizer = torch.optim.AdamW(layers.parameters())


def step() -> None:
    x = torch.randn(4096, 1024).cuda()
    for layer in layers:
        x = x + checkpoint(layer, x, use_reentrant=False)
    x.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


for _ in range(6):
    step()
