"""A plain loop with evaluation, saving and resuming, each measured by the script: `plain.py [CHECKPOINT]`."""

import sys

import torch
from measuring import keep, measured
from torch import nn

CHECKPOINT = "checkpoint.pt"


def evaluate(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        logits = [model(torch.randn(3000, 256, device="cuda")) for _ in range(3)]
        torch.cat(logits).softmax(-1)
    model.train()


def save(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    copy = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.save({"model": copy, "optimizer": optimizer.state_dict()}, CHECKPOINT)


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, path: str) -> None:
    checkpoint = torch.load(path, map_location="cuda")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])


model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.Dropout(0.1)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
big = torch.empty(2**24, device="cuda")
del big
if len(sys.argv) > 1:
    keep("loading")
    with measured("resuming"):
        resume(model, optimizer, sys.argv[1])
for step in range(4):
    batch = torch.randn(512, 256, device="cuda")
    if not step:
        keep("loading")
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    keep("steady step" if step else "first step")
    optimizer.zero_grad()
    if step in (1, 3):
        with measured("evaluation"):
            evaluate(model)
        with measured("saving"):
            save(model, optimizer)
