"""A progress bar is given the scores themselves to show."""

import torch
from torch import nn


class Bar:
    def __init__(self) -> None:
        self.postfix = {}

    def set_postfix(self, **values: object) -> None:
        self.postfix.update(values)


bar = Bar()
model = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step() -> None:
    scores = model(torch.randn(8192, 512).cuda())
    loss = scores.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bar.set_postfix(loss=loss.item(), scores=scores)  # mend: bar.set_postfix(loss=loss.item())


for _ in range(6):
    step()
