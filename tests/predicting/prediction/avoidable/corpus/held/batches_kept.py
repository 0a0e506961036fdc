"""The batch before is kept on the card to be compared with, and is not."""

import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
previous = None
for _ in range(6):
    images = torch.randn(16, 3, 256, 256).cuda()
    model(images).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    previous = images  # mend: previous = None
