"""Take a step, and then do something else without end: how, and the folder of a library."""

import sys

sys.path.insert(0, sys.argv[2])
import a_library
import torch

weight = torch.zeros(16, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight])
weight.sum().backward()
optimizer.step()


def evaluate() -> None:
    while not (weight > 1).any():
        pass


if sys.argv[1] == "waits":
    evaluate()
else:
    a_library.download()
