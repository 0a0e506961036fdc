"""A trainer keeps what its model has returned last, for somebody who may want to look at it."""

import torch
from torch import nn


class Trainer:
    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        self.last_features = None

    def train(self, x: torch.Tensor) -> float:
        features = self.net(x)
        loss = (features - features.mean(0)).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.last_features = features  # mend: self.last_features = None
        return loss.item()


def main() -> None:
    net = nn.Sequential(nn.Linear(256, 8192), nn.ReLU(), nn.Linear(8192, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
    trainer = Trainer(net)
    for _ in range(6):
        trainer.train(torch.randn(4096, 256).cuda())


main()
