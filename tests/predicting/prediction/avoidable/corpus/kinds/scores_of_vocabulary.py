"""A small language model has scores for 32000 tokens at each of its places."""

import torch
from torch import nn

embed = nn.Embedding(32000, 128).cuda()
head = nn.Linear(128, 32000, bias=False).cuda()
optimizer = torch.optim.SGD([*embed.parameters(), *head.parameters()], lr=0.1)


def step() -> None:
    tokens = torch.randint(0, 32000, (4, 256)).cuda()
    scores = head(embed(tokens))
    nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


for _ in range(6):
    step()
