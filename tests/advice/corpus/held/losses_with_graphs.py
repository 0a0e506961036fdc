"""A second loss is only recorded: no backward pass frees what its graph has saved."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 2048), nn.Tanh(), nn.Linear(2048, 2048), nn.Tanh()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _ in range(6):
    x = torch.randn(4096, 256).cuda()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    noise = model(torch.randn(1024, 256).cuda()).std()
    history.append(noise)  # mend: history.append(noise.item())
    # mend: del noise
