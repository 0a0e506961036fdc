"""DeepSpeed: `zero.py STAGE [offload]`."""

import sys

import deepspeed
import torch
from common import STEPS, begin, finish, settle
from torch import nn

stage = int(sys.argv[1])
rank, size = begin()
model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(3)))
zero = {"stage": stage}
if "offload" in sys.argv:
    zero["offload_optimizer"] = {"device": "cpu"}
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
    },
)
for _ in range(STEPS):
    loss = engine(torch.randn(4, 512, device="cuda", dtype=torch.bfloat16)).float().square().mean()
    engine.backward(loss)
    engine.step()
    settle()
finish()
