"""A small training script with options of its own."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--json", action="store_true")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--groups", type=int, default=1)
options = parser.parse_args()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, options.width), nn.ReLU(), nn.Linear(options.width, 8), nn.BatchNorm1d(8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(options.steps):
    batch = torch.randn(options.batch_size, 64, device="cuda")
    assert options.batch_size % options.groups == 0, "the batch does not divide into groups"
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, options.json)
