"""A language model of LSTM layers with a large vocabulary: logits are the largest tensors."""

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self, vocabulary: int = 80_000, width: int = 512) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.layers(self.embedding(tokens))
        return self.head(hidden)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, criterion: nn.Module) -> None:
    for _ in range(100):
        tokens = torch.randint(0, 80_000, (32, 129), device="cuda")
        logits = model(tokens[:, :-1])
        loss = criterion(logits.reshape(-1, logits.size(-1)), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()


network = Model().cuda()
train(network, torch.optim.Adam(network.parameters(), lr=1e-3), nn.CrossEntropyLoss())
