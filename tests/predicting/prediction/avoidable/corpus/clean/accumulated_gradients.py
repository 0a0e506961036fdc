"""Gradients live over the passes that add to them; nothing else does."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def one_pass() -> float:
    loss = model(torch.randn(1024, 1024).cuda()).square().mean() / 4
    loss.backward()
    return loss.item()


for _ in range(4):
    print(sum(one_pass() for _ in range(4)))
    optimizer.step()
    optimizer.zero_grad()
