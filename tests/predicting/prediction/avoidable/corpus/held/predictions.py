"""Predictions of every batch are kept on the card for a metric at the end of the epoch."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 1000)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train() -> float:
    predictions, targets = [], []
    for _ in range(8):
        x, y = torch.randn(4096, 256).cuda(), torch.randint(0, 1000, (4096,)).cuda()
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        predictions.append(logits.detach())  # mend: predictions.append(logits.detach().argmax(-1).cpu())
        targets.append(y.cpu())
    return len(predictions) / len(targets)


train()
