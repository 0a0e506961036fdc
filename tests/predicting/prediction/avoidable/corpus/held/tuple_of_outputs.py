"""An object with what a model returns stays in a variable: the hidden states of all layers are in it."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Output:
    last: torch.Tensor
    hidden_states: tuple[torch.Tensor, ...]


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(4))
        self.head = nn.Linear(1024, 8192)

    def forward(self, x: torch.Tensor) -> Output:
        states = [x]
        for layer in self.layers:
            states.append(layer(states[-1]))
        scores = self.head(states[-1])
        normal = scores.detach().softmax(-1) * scores.detach().exp()
        return Output(last=scores.logsumexp(-1) + normal.amax(-1), hidden_states=tuple(states))


def main() -> None:
    model = Stack().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        output = model(torch.randn(2048, 1024).cuda())
        output.last.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        # mend: del output


main()
