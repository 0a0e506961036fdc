"""What every script here does: begin as one rank of many, train for a few steps, and print the rank's peaks."""

import os
from collections.abc import Callable
from contextlib import suppress

import torch
import torch.distributed as dist
from torch import nn

STEPS = 3


def begin(backend: str = "nccl") -> tuple[int, int]:
    """Join the other ranks, and return this one's number and how many there are."""
    torch.manual_seed(0)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend)
    return dist.get_rank(), dist.get_world_size()


def train(step: Callable[[int], object], optimizer: torch.optim.Optimizer) -> None:
    """Take the steps, and tell the peaks."""
    for number in range(STEPS):
        step(number)
        optimizer.step()
        optimizer.zero_grad()
        settle()
    finish()


def settle() -> None:
    """Wait until every work is let go by NCCL's watchdog, a thread that looks a few times a second.

    From torch 2.15 on a group may be of the backend nccl2, which has no such function.
    """
    torch.cuda.synchronize()
    for group in dist.distributed_c10d._world.pg_map:
        with suppress(RuntimeError):
            group._wait_for_pending_works()


def finish() -> None:
    """Print rank, allocated and reserved peak."""
    stats = torch.cuda.memory_stats()
    said = f"{dist.get_rank()} {stats['allocated_bytes.all.peak']} {stats['reserved_bytes.all.peak']}\n"
    os.write(1, said.encode())  # in one piece: several processes write to one place
    dist.barrier()
    dist.destroy_process_group()


class Block(nn.Module):
    """A residual block of a transformer's form: attention over the sequence, and a feed-forward layer."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as much as came."""
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.into(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(x)))
