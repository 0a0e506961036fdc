"""A training loop that keeps its losses, graph and all."""

import torch
from torch import nn

model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters())
losses = []
while True:
    hidden = model(torch.randn(2048, 1024, device="cuda"))
    losses.append(hidden.square().mean())
    losses[-1].backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
