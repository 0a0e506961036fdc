"""Three steps of blocks with running statistics; `told` is what has to stay the same."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, norm):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = norm
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(torch.relu(self.norm(self.conv(x))))


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 1)
        self.first = nn.ModuleList(Block(width, nn.BatchNorm2d(width)) for _ in range(2))
        self.second = nn.ModuleList(
            [
                Block(width, nn.BatchNorm2d(width, momentum=None)),
                Block(width, nn.InstanceNorm2d(width, track_running_stats=True)),
                Block(width, nn.BatchNorm2d(width).eval()),
            ]
        )

    def forward(self, x):
        x = self.stem(x)
        for block in (*self.first, *self.second):
            x = block(block(x))
        return x


net = Net().to("cuda")
net.second[2].norm.eval()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    loss = net(torch.rand(4, 3, 8, 8, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
told = [loss.detach(), *net.buffers(), *(parameter.grad for parameter in net.parameters())]
