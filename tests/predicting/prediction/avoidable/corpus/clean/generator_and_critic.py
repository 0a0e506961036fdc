"""Two networks take turns: what one has made for the other's loss is used for its own as well."""

import torch
from torch import nn

maker = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 1024)).cuda()
critic = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1)).cuda()
for_maker = torch.optim.Adam(maker.parameters())
for_critic = torch.optim.Adam(critic.parameters())


def step() -> None:
    made = maker(torch.randn(4096, 64).cuda())
    for_critic.zero_grad()
    (critic(made.detach()).mean() - critic(torch.randn(4096, 1024).cuda()).mean()).backward()
    for_critic.step()
    for_maker.zero_grad()
    (-critic(made).mean()).backward()
    for_maker.step()


for _ in range(6):
    step()
