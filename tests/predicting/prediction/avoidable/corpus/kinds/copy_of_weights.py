"""The best weights so far are kept on the card."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
best = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}  # mend: best = None


def step() -> None:
    model(torch.randn(2048, 1024).cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


for _ in range(6):
    step()
