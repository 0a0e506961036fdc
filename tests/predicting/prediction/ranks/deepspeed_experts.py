"""DeepSpeed's experts, four of them on two ranks: `deepspeed_experts.py ZERO_STAGE`."""

import sys

import deepspeed
import torch
from common import STEPS, begin, finish, settle
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from torch import nn

WIDTH, BATCH, LENGTH = 128, 4, 256
rank, size = begin()
deepspeed.init_distributed()


class Model(nn.Module):
    """Experts between two layers."""

    def __init__(self) -> None:
        super().__init__()
        expert = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.into, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.experts = MoE(WIDTH, expert, num_experts=4, ep_size=2, k=2, capacity_factor=1.5, use_rts=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return as much as came, and the loss by which experts are balanced."""
        x = self.into(x)
        mixed, balance, _ = self.experts(x)
        return self.out(x + mixed), balance


model = Model()
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=split_params_into_different_moe_groups_for_optimizer(
        {"params": list(model.parameters()), "name": "all"}
    ),
    config={
        "train_micro_batch_size_per_gpu": BATCH,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": int(sys.argv[1])},
        "zero_allow_untested_optimizer": True,
    },
)
for _ in range(STEPS):
    out, balance = engine(torch.randn(BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16))
    engine.backward(out.float().square().mean() + balance.float())
    engine.step()
    settle()
finish()
