"""Two networks against each other, two optimizers: no one model is "the" model."""

import torch
from torch import nn

generator = nn.Sequential(
    nn.Linear(128, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 3072)
).cuda()
critic = nn.Sequential(
    nn.Linear(3072, 4096), nn.LeakyReLU(0.2), nn.Linear(4096, 4096), nn.LeakyReLU(0.2), nn.Linear(4096, 1)
).cuda()
first = torch.optim.Adam(generator.parameters(), lr=2e-4)
second = torch.optim.Adam(critic.parameters(), lr=2e-4)
criterion = nn.BCEWithLogitsLoss()
for _ in range(100):
    real = torch.rand(8192, 3072, device="cuda")
    fake = generator(torch.randn(8192, 128, device="cuda"))
    second.zero_grad()
    loss = criterion(critic(real), torch.ones(8192, 1, device="cuda"))
    loss = loss + criterion(critic(fake.detach()), torch.zeros(8192, 1, device="cuda"))
    loss.backward()
    second.step()
    first.zero_grad()
    loss = criterion(critic(fake), torch.ones(8192, 1, device="cuda"))
    loss.backward()
    first.step()
