"""Memory runs out where no step is taken: `runs_out.py evaluation|saving|resuming`."""

import io
import sys

import torch
from torch import nn

model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
TOO_MUCH = 2**28


def evaluate() -> None:
    model.eval()
    with torch.no_grad():
        model(torch.randn(8, 1024, device="cuda"))
        model(torch.empty(TOO_MUCH // 1024, 1024, device="cuda"))


class Huge:
    def __reduce__(self) -> tuple[type, tuple[()]]:
        torch.empty(TOO_MUCH, device="cuda")
        return (Huge, ())


def save() -> None:
    torch.save({"model": model.state_dict(), "huge": Huge()}, io.BytesIO())


for _ in range(2):
    model(torch.randn(8, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
if sys.argv[1] == "evaluation":
    evaluate()
else:
    save()
