"""SageAttention 1: attention in int8 (Triton kernels); it has no backward."""

import torch
from counted import Counted
from sageattention import sageattn

BATCH, HEADS, LENGTH, WIDTH = 2, 16, 2048, 64


def run(counted: Counted) -> None:
    q, k, v = (torch.randn(BATCH, HEADS, LENGTH, WIDTH, device="cuda", dtype=torch.float16) for _ in range(3))
    with counted.grows("the result", 2 * BATCH * HEADS * LENGTH * WIDTH):
        result = sageattn(q, k, v)
    assert result.shape == q.shape
