"""Objects and sizes that one rank makes and others allocate by: `objects.py [gloo]`."""

import sys

import torch
import torch.distributed as dist
from common import begin, train
from torch import nn

rank, size = begin("cpu:gloo,cuda:nccl" if "gloo" in sys.argv else "nccl")
model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters())


def step(number: int) -> None:
    """Train on a batch whose size comes from the first rank, and hold as much as the last says."""
    said: list = [{"rows": 1000 + 100 * number}, "more"] if rank == 0 else [None, None]
    dist.broadcast_object_list(said, src=0)
    held = torch.tensor([3000], device="cuda") if rank == size - 1 else torch.zeros(1, dtype=torch.long, device="cuda")
    dist.broadcast(held, src=size - 1)
    share: list = [None]
    dist.scatter_object_list(share, [{"columns": 7 + each} for each in range(size)] if rank == 0 else None, src=0)
    rows, columns = said[0]["rows"], share[0]["columns"]
    more = torch.empty(int(held), 256, device="cuda"), torch.empty(1000, columns, device="cuda")
    loss = model(torch.randn(rows, 256, device="cuda")).square().mean() + more[0].sum() + more[1].sum()
    loss.backward()
    dist.broadcast(loss.detach(), src=size - 1)
    loss.item()


train(step, optimizer)
