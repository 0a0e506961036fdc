"""Liger-Kernel: RMS norm and fused linear cross entropy (Triton kernels), forward and backward."""

import torch
from counted import Counted, requested_bytes
from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss, LigerRMSNorm

ROWS, WIDTH, WORDS = 2048, 1024, 32000


def run(counted: Counted) -> None:
    head = torch.nn.Linear(WIDTH, WORDS, bias=False, device="cuda", dtype=torch.bfloat16)
    norm = LigerRMSNorm(WIDTH).to("cuda", torch.bfloat16)
    x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.zeros(ROWS, dtype=torch.long, device="cuda")
    loss_of = LigerFusedLinearCrossEntropyLoss()
    loss_of(head.weight, norm(x), labels).backward()  # the workspaces of cuBLAS
    x.grad = head.weight.grad = norm.weight.grad = None
    with counted.grows("gradients of head, norm and input", 2 * (WORDS * WIDTH + WIDTH + ROWS * WIDTH)):
        loss_of(head.weight, norm(x), labels).backward()
    before = requested_bytes()
    torch.cuda.reset_peak_memory_stats()
    loss_of(head.weight, x.detach(), labels)
    # Chunks such that logits take about as much as the input: one chunk of logits at a time, never all of them.
    peak = requested_bytes("peak") - before
    assert peak < 4 * ROWS * WORDS, "the logits are whole, which this loss exists to avoid"
