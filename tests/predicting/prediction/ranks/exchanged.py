"""Sizes that follow from what ranks send each other by all-to-all, some of them nothing."""

import torch
import torch.distributed as dist
from common import begin, train
from torch import nn

rank, size = begin()
model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters())


def exchanged() -> int:
    """Return the sum of what ranks send each other: some send some others nothing."""
    sent = [100 * ((rank + each) % 2) for each in range(size)]
    received = torch.empty(sum(sent), dtype=torch.long, device="cuda")
    own = torch.full((sum(sent),), rank + 1, device="cuda")
    dist.all_to_all_single(received, own, sent, sent)
    parts = [torch.zeros(1, dtype=torch.long, device="cuda") for _ in range(size)]
    dist.all_to_all(parts, [torch.tensor([rank + each], device="cuda") for each in range(size)])
    return int(received.sum()) + int(sum(parts))


def step(number: int) -> None:
    """Train, and hold as much as the others have sent."""
    held = torch.empty(exchanged(), 50, device="cuda")
    loss = model(torch.randn(1000 + number, 256, device="cuda")).square().mean() + held.sum()
    loss.backward()


train(step, optimizer)
