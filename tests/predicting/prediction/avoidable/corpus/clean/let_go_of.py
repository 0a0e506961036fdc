"""What a step has made is let go of at its end."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    x, y = torch.randn(4096, 512).cuda(), torch.randint(0, 1000, (4096,)).cuda()
    scores = model(x)
    loss = nn.functional.cross_entropy(scores, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print((scores.argmax(-1) == y).float().mean().item())
    del x, y, scores, loss
