"""An evaluation in a process of its own, after which the card is as it was before. Without a GPU:
`python examples/evaluate_isolated.py T4`."""

import sys

import ullage

if len(sys.argv) > 1:
    ullage.emulate(sys.argv[1])

import torch
from torch import nn


def evaluate(batch: torch.Tensor) -> torch.Tensor:
    """Return the model's answers, computed on the card."""
    model = nn.Linear(1024, 16384).cuda()
    with torch.no_grad():
        return model(batch.cuda())


logits = ullage.isolated(evaluate, torch.randn(256, 1024), report=print)
print(tuple(logits.shape), logits.device)
