"""A loss on float32 logits keeps the bf16 logits, the float32 logits and a gradient for the whole batch at once."""

import sys

import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

head = torch.nn.Linear(1024, 50_000, bias=False, device="cuda", dtype=torch.bfloat16)
hidden = torch.randn(8192, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
labels = torch.randint(50_000, (8192,), device="cuda")


def loss_of(hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(head(hidden).float(), labels, reduction="sum")


if "changed" in sys.argv:
    parts = zip(hidden.split(1024), labels.split(1024), strict=True)
    loss = sum(checkpoint(loss_of, *part, use_reentrant=False) for part in parts)
else:
    loss = loss_of(hidden, labels)
loss.backward()
