"""A script that refuses a batch above 40: `refuses.py --batch-size N`."""

import sys

import torch
from torch import nn

size = int(sys.argv[sys.argv.index("--batch-size") + 1])
if size > 40:
    raise ValueError("a batch above 40 is not foreseen")
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(4):
    model(torch.ones(size, 64, device="cuda")).sum().backward()
    optimizer.step()
