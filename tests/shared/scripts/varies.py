"""Train with batches of several sizes, or of one, and keep what is said: nothing, constant, batch, or every second."""

import itertools
import sys

import torch
from torch import nn

SIZES = (100, 300, 500, 700, 900, 200, 400, 600, 800)
model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters())
kept = []
for step, size in enumerate(itertools.cycle(SIZES if sys.argv[2:] != ["one size"] else SIZES[:1])):
    batch = torch.randn(8 * size, 1024, device="cuda")
    hidden = model(batch)
    hidden.square().mean().backward()
    match sys.argv[1]:
        case "constant":
            kept.append(torch.zeros(1 << 20, device="cuda"))
        case "batch":
            kept.append(batch)
        case "second" if step % 2:
            kept.append(torch.zeros(1 << 20, device="cuda"))
    optimizer.step()
    optimizer.zero_grad()
