"""Batches of different lengths, of which some do not fit; a guard takes them in parts. Without a GPU:
`python examples/train_guarded.py "RTX 3060"`."""

import random
import sys

import ullage

if len(sys.argv) > 1:
    ullage.emulate(sys.argv[1])

import torch
from torch import nn

random.seed(4)
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(1024, 16, batch_first=True), 12).cuda()
optimizer = torch.optim.AdamW(model.parameters())
guard = ullage.Guard(model, optimizer, log=print)
for _ in range(30):
    batch = torch.randn(24, random.choice([256, 512, 1024, 1536]), 1024, device="cuda")
    guard.step(batch, lambda part: model(part).square().mean())
print(f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB at the peak")
