"""Train on sequences that become longer, and keep most of every output: what is free lies in ever more pieces."""

import torch
from torch import nn

WIDTH = 1024
model = nn.Linear(WIDTH, WIDTH).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept = []
for step in range(60):
    rows = 16 * 1024 + 1024 * step
    batch = torch.randn(rows, WIDTH, device="cuda")
    output = model(batch)
    output.square().mean().backward()
    valid = output.detach()[: rows * 5 // 8]
    del batch, output
    kept.append(valid.clone())
    del valid
    optimizer.step()
    optimizer.zero_grad()
print("done", len(kept))
