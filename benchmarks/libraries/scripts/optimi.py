"""optimī: a step of AdamW with its Triton kernel, with Kahan summation in bfloat16."""

import optimi
import torch
from counted import Counted

WEIGHTS = 4096 * 4096


def run(counted: Counted) -> None:
    parameter = torch.nn.Parameter(torch.zeros(WEIGHTS, device="cuda", dtype=torch.bfloat16))
    parameter.grad = torch.ones_like(parameter)
    optimizer = optimi.AdamW([parameter], lr=1e-3, triton=True)
    with counted.grows("two moments and the compensation, in bfloat16", 3 * 2 * WEIGHTS):
        optimizer.step()
