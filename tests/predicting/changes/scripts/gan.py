"""Two networks against each other: a step has two forward passes, each with a backward pass of its own."""

import torch
from torch import nn

generator = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
critic = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
first = torch.optim.Adam(generator.parameters())
second = torch.optim.Adam(critic.parameters())
for _ in range(3):
    fake = generator(torch.randn(4096, 16, device="cuda"))
    second.zero_grad()
    loss = critic(torch.randn(4096, 64, device="cuda")).square().mean() + critic(fake.detach()).mean()
    loss.backward()
    second.step()
    first.zero_grad()
    loss = critic(fake).mean()
    loss.backward()
    first.step()
