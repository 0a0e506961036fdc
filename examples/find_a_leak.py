"""A loop that keeps a piece of every step, and a monitor that says so. Without a GPU:
`python examples/find_a_leak.py T4`."""

import sys

import ullage

if len(sys.argv) > 1:
    ullage.emulate(sys.argv[1])

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
outputs = []


def train(batch: torch.Tensor) -> None:
    """Take a step, and keep the first 16 rows of its output."""
    output = model(batch)
    output.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    outputs.append(output[:16].detach().clone())


with ullage.Monitor(log=print) as monitor:
    for _ in range(60):
        train(torch.randn(256, 1024, device="cuda"))
        monitor.step()
print()
print(monitor)
