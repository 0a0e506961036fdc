"""A checkpoint that a thread writes while training goes on."""

import io
import threading

import torch
from torch import nn

model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
state = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
begun, ended = threading.Event(), threading.Event()


class Slow:
    def __reduce__(self) -> tuple[type, tuple[()]]:
        begun.set()
        ended.wait()
        return (Slow, ())


def save() -> None:
    torch.save({"model": state, "slow": Slow()}, io.BytesIO())


for step in range(3):
    if step == 1:
        thread = threading.Thread(target=save)
        thread.start()
        begun.wait()
    model(torch.randn(1024 * (step + 1), 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        ended.set()
        thread.join()
