"""Run out of memory, and end in one of the ways that scripts do."""

import sys

import torch
from torch import nn

how = sys.argv[1]
if how == "first":
    torch.zeros(100 << 30, device="cuda")
model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters())


def train(rows: int) -> None:
    model(torch.randn(rows, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


if how == "uncaught":
    train(64)
    train(1 << 24)  # 64 GiB of inputs
elif how == "retry":
    rows = 1 << 24
    while True:
        try:
            train(rows)
        except torch.OutOfMemoryError:
            rows = 64
elif how == "other":
    try:
        train(1 << 24)
    except torch.OutOfMemoryError as error:
        raise RuntimeError("the batch is too large") from error
elif how in ("exit", "swallow"):
    gave_up = False
    try:
        train(1 << 24)
    except torch.OutOfMemoryError:
        gave_up = True
    if how == "exit":
        sys.exit(1)
elif how == "later error":
    try:
        train(1 << 24)
    except torch.OutOfMemoryError:
        train(64)
    raise KeyError("a mistake of another kind")
