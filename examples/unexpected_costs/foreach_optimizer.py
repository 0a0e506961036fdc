"""In each step, a foreach optimizer copies all parameters at once; a for-loop optimizer makes only small copies."""

import sys

import torch

model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(32))).cuda()
foreach = False if "changed" in sys.argv else None
optimizer = torch.optim.Adadelta(model.parameters(), weight_decay=0.1, foreach=foreach)
for _ in range(3):
    model(torch.randn(8, 2048, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
