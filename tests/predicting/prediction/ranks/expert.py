"""Experts spread over ranks, and tokens that go to them: `expert.py [data]`. Each rank has two."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from common import begin, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH, TOKENS, CHOSEN, HERE = 128, 512, 2, 2
rank, size = begin()
data = 2 if "data" in sys.argv else 1
mesh = init_device_mesh("cuda", (data, size // data), mesh_dim_names=("data", "expert"))
group = mesh.get_group("expert")
across = mesh.size(1)


class Exchange(torch.autograd.Function):
    """Rows sent to other ranks, whose gradients come back."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, received: list[int], sent: list[int]) -> torch.Tensor:
        """Return what others have sent."""
        ctx.received, ctx.sent = received, sent
        out = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Send the gradients the other way."""
        return Exchange.apply(gradients[0], ctx.sent, ctx.received), None, None


class Experts(nn.Module):
    """A router, and this rank's experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, across * HERE, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(HERE)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Send each token to the ranks of its experts, and add up what comes back."""
        weight, chosen = self.router(x).softmax(-1).topk(CHOSEN, -1)
        order = chosen.flatten().argsort(stable=True)
        for_expert = torch.bincount(chosen.flatten(), minlength=across * HERE)
        from_ranks = torch.empty_like(for_expert)
        dist.all_to_all_single(from_ranks, for_expert, group=group)
        sent = for_expert.view(across, HERE).sum(1).tolist()
        received = from_ranks.view(across, HERE).sum(1).tolist()
        rows = Exchange.apply(x[order // CHOSEN], received, sent)
        of_expert = torch.arange(HERE, device="cuda").repeat(across).repeat_interleave(from_ranks)
        done = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            places = (of_expert == number).nonzero().squeeze(1)
            done = done.index_copy(0, places, expert(rows[places]))
        back = Exchange.apply(done, sent, received)
        scaled = back * weight.flatten()[order][:, None]
        return x + torch.zeros_like(x).index_add(0, order // CHOSEN, scaled)


model = nn.Sequential(*(Experts() for _ in range(2))).cuda()
if data > 1:
    fully_shard(model, mesh=mesh["data"])
optimizer = torch.optim.AdamW(model.parameters())
train(lambda number: model(torch.randn(TOKENS, WIDTH, device="cuda")).square().mean().backward(), optimizer)
