"""flash-linear-attention: gated linear attention in chunks (Triton kernels), forward and backward."""

import torch
from counted import Counted
from fla.ops.gla import chunk_gla

BATCH, LENGTH, HEADS, WIDTH = 2, 1024, 4, 64


def run(counted: Counted) -> None:
    def leaf(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(BATCH, LENGTH, HEADS, WIDTH, device="cuda", dtype=dtype, requires_grad=True)

    q, k, v, gates = leaf(), leaf(), leaf(), leaf(torch.float32)
    loss = chunk_gla(q, k, v, torch.nn.functional.logsigmoid(gates))[0].float().mean()
    loss.backward()
    assert all(each.grad is not None and each.grad.shape == each.shape for each in (q, k, v, gates))
    counted.look()
