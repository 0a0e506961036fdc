"""Train without an optimizer of torch.optim: how, and how many steps (0: without end)."""

import itertools
import sys

import torch
from torch import nn

how, steps = sys.argv[1], int(sys.argv[2])
model = nn.Linear(1024, 1024, device="cuda")
weight = torch.zeros(1024, 1024, device="cuda", requires_grad=True)
velocity: list[torch.Tensor] = []


def forward() -> torch.Tensor:
    batch = torch.randn(64, 1024, device="cuda")
    return (batch @ weight if how == "functional" else model(batch)).square().mean()


def update(parameters: list[torch.Tensor]) -> None:
    """Momentum, whose state is made in the first update."""
    with torch.no_grad():
        if not velocity:
            velocity.extend(torch.zeros_like(parameter) for parameter in parameters)
        for parameter, state in zip(parameters, velocity, strict=True):
            state.mul_(0.9).add_(parameter.grad)
            parameter.sub_(state, alpha=0.01)
            parameter.grad = None


optimizer = None
for step in itertools.count(1):
    loss = forward()
    loss.backward(retain_graph=how == "two losses")
    if how == "two losses":
        (2 * loss).backward()
    if how == "optimizer":
        if step == 2:
            optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        if optimizer is not None and step % 4 == 0:  # gradients are accumulated
            optimizer.step()
            optimizer.zero_grad()
    else:
        update([weight] if how == "functional" else list(model.parameters()))
    print(f"step {step}", flush=True)
    if step == steps:
        break
