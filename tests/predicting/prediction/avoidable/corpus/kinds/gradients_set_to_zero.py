"""Gradients are filled with zeros after each step and stay through the next forward pass."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step() -> None:
    out = model(torch.randn(8192, 1024).cuda())
    with torch.no_grad():
        spread = (out.softmax(-1) * out.exp()).sigmoid().sum().item()
    loss = out.mean() + spread
    del out
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)  # mend: optimizer.zero_grad()


for _ in range(6):
    step()
