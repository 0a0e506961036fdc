"""lion-pytorch: a step with its Triton kernel."""

import torch
from counted import Counted
from lion_pytorch import Lion

WEIGHTS = 4096 * 4096


def run(counted: Counted) -> None:
    parameter = torch.nn.Parameter(torch.zeros(WEIGHTS, device="cuda"))
    parameter.grad = torch.ones_like(parameter)
    optimizer = Lion([parameter], lr=1e-4, use_triton=True)
    with counted.grows("one moment", 4 * WEIGHTS):
        optimizer.step()
