"""DeepSpeed's pipeline of two stages, by its own schedule: `deepspeed_pipeline.py [zero]`. A stage tells its shapes."""

import sys
from collections.abc import Iterator

import deepspeed
import torch
from common import STEPS, Block, begin, finish, settle
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

VOCABULARY, WIDTH, LENGTH, MICRO_BATCH, MICRO_BATCHES = 1000, 128, 64, 2, 4
rank, size = begin()
deepspeed.init_distributed()


def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean over tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the tokens and the targets of micro-batches."""
    while True:
        tokens = torch.randint(VOCABULARY, (MICRO_BATCH, LENGTH))
        yield tokens, tokens


embedding, head = LayerSpec(nn.Embedding, VOCABULARY, WIDTH), LayerSpec(nn.Linear, WIDTH, VOCABULARY)
blocks = [LayerSpec(Block, WIDTH) for _ in range(5)]
model = PipelineModule([embedding, *blocks, head], num_stages=2, loss_fn=loss, partition_method="uniform")
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=list(model.parameters()),
    config={
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1 if "zero" in sys.argv else 0},
        "zero_allow_untested_optimizer": True,
    },
)
data = batches()
for _ in range(STEPS):
    engine.train_batch(data_iter=data)
    settle()
finish()
