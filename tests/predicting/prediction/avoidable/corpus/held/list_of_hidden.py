"""Hidden states are put into a list and never looked at again."""

import torch
from torch import nn

encoder = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 2048)).cuda()
head = nn.Linear(2048, 10).cuda()
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
hidden_states = []


def train_step(x: torch.Tensor, y: torch.Tensor) -> float:
    hidden = encoder(x)
    hidden_states.append(hidden)  # mend: hidden_states.append(hidden.mean().item())
    loss = nn.functional.cross_entropy(head(hidden), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(6):
    train_step(torch.randn(2048, 512).cuda(), torch.randint(0, 10, (2048,)).cuda())
