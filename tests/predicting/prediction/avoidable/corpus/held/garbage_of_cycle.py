"""Each step makes an object that refers to itself, with scores in it: only the garbage collector lets go of it."""

import gc

import torch
from torch import nn


class Report:
    def __init__(self, scores: torch.Tensor) -> None:
        self.scores = scores
        self.itself = self  # mend: self.itself = None


gc.disable()  # as some do against pauses
model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    scores = model(torch.randn(4096, 256).cuda())
    scores.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    Report(scores.detach())
    del scores
