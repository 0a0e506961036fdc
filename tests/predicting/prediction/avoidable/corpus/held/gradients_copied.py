"""Copies of all gradients are made for a look at them, and stay until the next are made."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 2048)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    loss = model(torch.randn(4096, 2048).cuda()).square().mean()
    loss.backward()
    copies = [parameter.grad.clone() for parameter in model.parameters()]
    print(max(copy.abs().max().item() for copy in copies))
    # mend: del copies
    optimizer.step()
    optimizer.zero_grad()
