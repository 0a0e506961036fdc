"""Train with DeepSpeed: zero.py --stage 1|2|3."""

import argparse

import deepspeed
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=1)
parser.add_argument("--local_rank", type=int, default=0)
options = parser.parse_args()

settings = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": options.stage},
}
deepspeed.init_distributed("nccl")
with deepspeed.zero.Init(enabled=options.stage == 3, config_dict_or_path=settings):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(4)))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
for _ in range(1000):
    loss = engine(torch.randn(4, 512, device=engine.device, dtype=torch.bfloat16)).float().square().mean()
    engine.backward(loss)
    engine.step()
