"""xFormers: memory-efficient attention by its CUTLASS kernels, forward and backward."""

import torch
from counted import Counted
from xformers.ops import LowerTriangularMask, fmha, memory_efficient_attention

BATCH, LENGTH, HEADS, WIDTH = 2, 1024, 16, 64
VALUES = BATCH * LENGTH * HEADS * WIDTH


def run(counted: Counted) -> None:
    q, k, v = (
        torch.randn(BATCH, LENGTH, HEADS, WIDTH, device="cuda", dtype=torch.float16, requires_grad=True)
        for _ in range(3)
    )
    mask = LowerTriangularMask()
    # The result, and one float a row and head that the backward needs.
    with counted.grows("a forward by CUTLASS", 2 * VALUES + 4 * BATCH * HEADS * LENGTH):
        result = memory_efficient_attention(q, k, v, attn_bias=mask, op=fmha.MemoryEfficientAttentionCutlassOp)
    with counted.grows("a second forward, by FlashAttention", 2 * VALUES + 4 * BATCH * HEADS * LENGTH):
        second = memory_efficient_attention(q, k, v, attn_bias=mask)
    (result + second).float().mean().backward()
    assert q.grad is not None
