"""An optimizer works on lists of all parameters, and its results stand beside its state."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())  # mend: optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(6):
    model(torch.randn(16, 1024).cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
