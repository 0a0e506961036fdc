"""An optimizer of the script's own has state that lives from step to step."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
momentum = {}


def update() -> None:
    for name, parameter in model.named_parameters():
        before = momentum.get(name)
        momentum[name] = parameter.grad.clone() if before is None else 0.9 * before + parameter.grad
        parameter -= 0.1 * momentum[name]
        parameter.grad = None


for _ in range(6):
    loss = model(torch.randn(2048, 1024).cuda()).square().mean()
    loss.backward()
    with torch.no_grad():
        update()
