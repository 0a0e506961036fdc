"""Train a few very wide layers with AdamW: parameters, gradients and the optimizer take nearly everything."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--width", type=int, default=16384)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--steps", type=int, default=2)
options = parser.parse_args()

with torch.device("cuda"):
    layers = [nn.Linear(options.width, options.width, dtype=torch.bfloat16) for _ in range(options.layers)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.GELU())))
    given = torch.randn(256, options.width, dtype=torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(options.steps):
    loss = model(given).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.4f}")
