"""Gradients are let go of after the forward pass, just before new ones are made."""

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
    optimizer.zero_grad()  # mend: pass
    loss.backward()
    optimizer.step()
    # mend: optimizer.zero_grad()


for _ in range(6):
    step()
