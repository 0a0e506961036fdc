"""A training run that keeps too much: who holds what, and all of it given back. Without a GPU:
`python examples/who_holds_what.py T4`."""

import sys

import ullage

if len(sys.argv) > 1:
    ullage.emulate(sys.argv[1])

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
losses = []


def train(steps: int) -> None:
    """Train, and keep every loss with its graph."""
    for _ in range(steps):
        batch = torch.randn(256, 1024, device="cuda")
        loss = model(batch).square().mean()
        loss.backward(retain_graph=True)
        optimizer.step()
        losses.append(loss)


train(3)
print(ullage.owners())
print()
print(ullage.release(model, optimizer, losses))
