"""Scores are kept in a dict of metrics, which the next step fills again."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 8192), nn.GELU(), nn.Linear(8192, 4096)).cuda()
optimizer = torch.optim.Adam(model.parameters())
metrics = {}
for _ in range(6):
    x = torch.randn(2048, 256).cuda()
    y = torch.randint(0, 4096, (2048,)).cuda()
    scores = model(x)
    loss = nn.functional.cross_entropy(scores, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    metrics["loss"] = loss.item()
    metrics["scores"] = scores  # mend: metrics["accuracy"] = (scores.argmax(-1) == y).float().mean().item()
    # mend: del scores
