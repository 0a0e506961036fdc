"""A pipeline of hand-written sends: shapes first, then what has them, as Megatron-LM does it."""

import torch
import torch.distributed as dist
from common import begin, train
from torch import nn

rank, size = begin()
is_first, is_last = rank == 0, rank == size - 1
model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def received_shape() -> list[int]:
    """Return the shape that the rank before tells."""
    shape = torch.empty(2, dtype=torch.int64, device="cuda")
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, shape, rank - 1)]):
        work.wait()
    return shape.tolist()


def forward(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Run this stage's layers on what comes from the rank before."""
    if is_first:
        x = torch.randn(rows, 128, device="cuda")
    else:
        x = torch.empty(received_shape(), device="cuda", requires_grad=True)
        dist.recv(x.detach(), rank - 1)
    y = model(x)
    if not is_last:
        shape = torch.tensor(y.shape, device="cuda")
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, shape, rank + 1)]):
            work.wait()
        dist.send(y.detach(), rank + 1)
    return x, y


def step(number: int) -> None:
    """Two micro-batches, of which the second is longer, forward and then backward."""
    done = [forward(400 + 30 * number), forward(700 + 30 * number)]
    for x, y in reversed(done):
        gradient = torch.empty_like(y)
        if is_last:
            y.sum().backward()
        else:
            dist.recv(gradient, rank + 1)
            y.backward(gradient)
        if not is_first:
            dist.send(x.grad, rank - 1)


train(step, optimizer)
