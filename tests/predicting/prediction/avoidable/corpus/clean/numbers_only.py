"""Only numbers are kept, and the variables end with a function."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
losses = []


def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


for _ in range(6):
    losses.append(step(torch.randn(4096, 512).cuda(), torch.randint(0, 1000, (4096,)).cuda()))
print(torch.stack(losses).mean().item())
