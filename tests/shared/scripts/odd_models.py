"""Models that are easy to trip over: lazy parameters, a keyword named `module`, an optimizer step that fails once."""

import torch
from torch import Tensor, nn


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(64, device="cuda")

    def forward(self, x: Tensor, *, module: str) -> Tensor:
        assert module == "mine"
        return self.layer(x)


def main() -> None:
    model = Odd()
    assert not torch.logical_and(torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda"))
    model(torch.randn(8, 32, device="cuda"), module="mine").sum().backward()
    optimizer = torch.optim.AdamW(model.parameters())
    group = optimizer.param_groups[0]
    group["lr"], kept = None, group["lr"]
    try:
        optimizer.step()
    except TypeError:
        group["lr"] = kept
    for _ in range(3):
        batch = torch.randn(1024, 32, device="cuda")
        optimizer.zero_grad()
        model(batch, module="mine").square().sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
