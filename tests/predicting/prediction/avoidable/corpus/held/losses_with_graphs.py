"""A second loss is only recorded: no backward pass frees what its graph has saved."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 2048), nn.Tanh(), nn.Linear(2048, 2048), nn.Tanh()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _ in range(6):
    loss = model(torch.randn(4096, 256).cuda()).square().mean()
    spread = model(torch.randn(1024, 256).cuda()).std()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    history.append(spread)  # mend: history.append(spread.item())
    # mend: del spread
