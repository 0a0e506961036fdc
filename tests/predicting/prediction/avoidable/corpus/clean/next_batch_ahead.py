"""The next batch is sent to the card while this one is worked on."""

from collections.abc import Iterator

import torch
from torch import nn


def ahead() -> Iterator[torch.Tensor]:
    following = torch.randn(2048, 4096).cuda()
    for _ in range(8):
        current, following = following, torch.randn(2048, 4096).cuda()
        yield current


model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in ahead():
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
