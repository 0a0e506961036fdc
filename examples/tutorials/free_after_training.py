"""Train, then free the GPU memory: with `del` and `empty_cache()`, or, with the argument `release`, by ullage.release.

Without a GPU: `python examples/tutorials/free_after_training.py T4 release`.
"""

import gc
import sys

import ullage

if len(sys.argv) > 1 and sys.argv[1] != "release":
    ullage.emulate(sys.argv[1])

import torch
from torch import nn


def allocated(what):
    print(f"{what}: {torch.cuda.memory_allocated() / 2**20:.1f} MiB allocated")


def train(model, optimizer, scheduler):
    """Run three steps and return the losses, as many notebooks do."""
    losses = []
    for _ in range(3):
        loss = model(torch.randn(256, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss)
    return losses


model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
losses = train(model, optimizer, scheduler)
allocated("after training")

if "release" in sys.argv:
    print(ullage.release(model, optimizer, scheduler, losses))
else:
    del model, optimizer
    gc.collect()
    torch.cuda.empty_cache()
    allocated("after del, gc.collect() and empty_cache()")
    print(ullage.owners())
