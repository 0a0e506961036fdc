"""`torch.func.grad` keeps the graph of its backward pass; `torch.autograd.grad` does not."""

import sys

import torch

weights = [torch.randn(2048, 2048, device="cuda", requires_grad=True) for _ in range(16)]
x = torch.randn(4096, 2048, device="cuda")


def loss_of(weights: list[torch.Tensor]) -> torch.Tensor:
    y = x
    for weight in weights:
        y = torch.tanh(y @ weight)
    return y.sum()


grads = torch.autograd.grad(loss_of(weights), weights) if "changed" in sys.argv else torch.func.grad(loss_of)(weights)
