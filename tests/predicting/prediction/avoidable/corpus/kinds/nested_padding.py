"""The sum over each sequence pads every sequence to the sum of all lengths: 64 x 6,400 x 64 elements."""

import torch
from torch import nn

layer = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
offsets = torch.arange(0, 6401, 100).cuda()


def step() -> None:
    batch = torch.nested.nested_tensor_from_jagged(torch.randn(6400, 64).cuda(), offsets)
    layer(batch).to_padded_tensor(0.0).sum(dim=1).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


for _ in range(6):
    step()
