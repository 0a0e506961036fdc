"""Gradients are accumulated over small batches, and the scores of one stay through the forward pass of the next."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(128, 512), nn.ReLU())
        self.head = nn.Linear(512, 8192)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scores = self.head(self.body(x))
        best = (scores.detach().softmax(-1) * scores.detach().exp()).amax(-1)
        return nn.functional.cross_entropy(scores, y), scores, best


model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    for _ in range(3):
        x, y = torch.randn(1024, 128).cuda(), torch.randint(0, 8192, (1024,)).cuda()
        loss, scores, best = model(x, y)
        (loss / 3).backward()
        # mend: del scores
    optimizer.step()
    optimizer.zero_grad()
