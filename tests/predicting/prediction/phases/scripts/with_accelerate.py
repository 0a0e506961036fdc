"""Accelerate's loop with evaluation, save_state and load_state: `with_accelerate.py [CHECKPOINT]`."""

import sys

import torch
from accelerate import Accelerator
from measuring import keep, measured
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
rows = TensorDataset(torch.randn(128, 256))
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), DataLoader(rows, 32))
if len(sys.argv) > 1:
    keep("loading")
    with measured("resuming"):
        accelerator.load_state(sys.argv[1])
for step, (batch,) in enumerate(loader):
    if not step:
        keep("loading")
    loss = model(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    keep("steady step" if step else "first step")
    optimizer.zero_grad()
    if step % 2:
        model.eval()
        with measured("evaluation"), torch.inference_mode():
            outputs = [model(torch.randn(500, 256, device=accelerator.device)) for _ in range(2)]
            torch.cat(outputs).argmax(-1)
            del outputs
        model.train()
        with measured("saving"):
            accelerator.save_state("out")
