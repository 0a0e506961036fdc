"""A forward hook puts features into a variable of the function around it."""

import torch
from torch import nn


def main() -> None:
    features = None

    def keep(module: nn.Module, arguments: object, output: torch.Tensor) -> None:
        nonlocal features
        features = output  # mend: features = None

    body = nn.Sequential(nn.Linear(128, 4096), nn.ReLU())
    model = nn.Sequential(body, nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    body.register_forward_hook(keep)
    for _ in range(6):
        loss = model(torch.randn(4096, 128).cuda()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            wide = torch.cat([model[1:](torch.zeros(4096, 4096).cuda()) for _ in range(4)])
            del wide


main()
