"""Fail before the first step, after a step, or inside the backward pass."""

import sys

import torch
from torch import nn


class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("broken in backward")


def early() -> None:
    raise ValueError("broken early")


when = sys.argv[1]
model = nn.Linear(8, 8).cuda()
if when == "before":
    early()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(5):
    output = model(torch.randn(4, 8, device="cuda"))
    if when == "backward":
        output = Breaks.apply(output)
    output.sum().backward()
    optimizer.step()
    if when == "after":
        raise ValueError("broken after a step")
