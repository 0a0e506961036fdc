"""Every step is followed by an evaluation that keeps numbers only."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def train() -> None:
    model.train()
    loss = model(torch.randn(2048, 512).cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.no_grad()
def evaluate() -> float:
    model.eval()
    outputs = [model(torch.randn(2048, 512).cuda()) for _ in range(4)]
    return torch.cat(outputs).mean().item()


for _ in range(4):
    train()
    print(evaluate())
