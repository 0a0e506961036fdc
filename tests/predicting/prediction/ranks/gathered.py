"""Sizes that all ranks make together, each with a batch of its own length: `gathered.py [gloo]`.

They agree on the longest batch, sum and multiply counts, and gather lengths and objects, on the card, or by a real Gloo
on the host.
"""

import sys

import torch
import torch.distributed as dist
from common import begin, train
from torch import nn

is_gloo = "gloo" in sys.argv
rank, size = begin("cpu:gloo,cuda:nccl" if is_gloo else "nccl")
place = torch.device("cpu" if is_gloo else "cuda")
model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters())


def together(number: int, operation: dist.ReduceOp.RedOpType) -> int:
    """Return what an operation makes of a number of each rank's."""
    held = torch.tensor([number], device=place)
    dist.all_reduce(held, op=operation)
    return int(held)


def step(number: int) -> None:
    """Pad to the longest batch, and hold what the others say."""
    own = 1000 + 300 * rank + 10 * number
    longest = together(own, dist.ReduceOp.MAX)
    held = [torch.empty(together(own, dist.ReduceOp.SUM), 100, device="cuda")]
    held += [torch.empty(together(own, dist.ReduceOp.MIN), 100, device="cuda")]
    held += [torch.empty(together(rank + 2, dist.ReduceOp.PRODUCT), 1000, device="cuda")]
    if together(int(rank == 0), dist.ReduceOp.SUM) == 1:  # as trainers ask whether all ranks want to go on
        held += [torch.empty(500, 1000, device="cuda")]
    lengths = [torch.zeros(1, dtype=torch.long, device=place) for _ in range(size)]
    dist.all_gather(lengths, torch.tensor([own], device=place))
    held += [torch.empty(int(each), 40, device="cuda") for each in lengths]
    flat = torch.zeros(size, dtype=torch.long, device=place)
    if not is_gloo:  # Gloo has one for lists alone in some versions
        dist.all_gather_into_tensor(flat, torch.tensor([own], device=place))
        held += [torch.empty(int(flat.sum()), 30, device="cuda")]
    first = torch.tensor([own], device=place)
    dist.reduce(first, dst=0, op=dist.ReduceOp.SUM)
    if rank == 0 or not is_gloo:  # NCCL leaves the others what they have
        held += [torch.empty(int(first), 20, device="cuda")]
    said: list = [None] * size
    dist.all_gather_object(said, {"rows": own, "words": "more" * rank})
    held += [torch.empty(sum(each["rows"] for each in said), 70, device="cuda")]
    told: list | None = [None] * size if rank == 0 else None
    dist.gather_object(own, told, dst=0)
    held += [torch.empty(sum(told), 60, device="cuda")] if told else []
    loss = model(torch.randn(longest, 256, device="cuda")).square().mean() + sum(each.sum() for each in held)
    loss.backward()


train(step, optimizer)
