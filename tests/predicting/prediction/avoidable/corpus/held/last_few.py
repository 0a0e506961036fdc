"""The features of the last few batches are kept in a queue, and nothing reads them."""

from collections import deque

import torch
from torch import nn

queue = deque(maxlen=4)
model = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 512)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    features = model(torch.randn(8192, 256).cuda())
    features.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    queue.append(features.detach())  # mend: queue.append(features.mean().item())
    # mend: del features
