"""Fail before the first step, in one line or in lines, after a step, or inside the backward pass."""

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


def early_in_lines() -> None:
    raise ValueError("\n        Failed to begin:\n        Input: 3\n        ")


when = sys.argv[1]
model = nn.Linear(8, 8).cuda()
if when == "before":
    early()
if when == "in lines":
    early_in_lines()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(5):
    output = model(torch.randn(4, 8, device="cuda"))
    if when == "backward":
        output = Breaks.apply(output)
    output.sum().backward()
    optimizer.step()
    if when == "after":
        raise ValueError("broken after a step")
