"""A model in half precision is trained by an optimizer that has its own weights, and gradients, in float32."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)]).cuda().half()
own = [nn.Parameter(parameter.detach().float()) for parameter in model.parameters()]
optimizer = torch.optim.SGD(own, lr=0.1)


def step() -> None:
    model(torch.randn(64, 2048).cuda().half()).float().square().mean().backward()
    for parameter, master in zip(model.parameters(), own, strict=True):
        master.grad = parameter.grad.float()
        # mend: parameter.grad = None
    optimizer.step()
    with torch.no_grad():
        for parameter, master in zip(model.parameters(), own, strict=True):
            parameter.copy_(master)
            parameter.grad = None
    optimizer.zero_grad()


for _ in range(6):
    step()
