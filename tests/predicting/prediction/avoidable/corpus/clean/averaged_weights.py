"""An average of the weights is kept up to date after every step."""

import copy

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
average = None


def step() -> None:
    global average
    loss = model(torch.randn(2048, 1024).cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if average is None:
        average = copy.deepcopy(model)
    with torch.no_grad():
        for mean, now in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(now, 0.01)


for _ in range(6):
    step()
