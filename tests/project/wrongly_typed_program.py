"""Uses that a type checker has to refuse: each line with the mark, and no other. It is never run."""

import torch
from torch import nn

import ullage


def uses(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    ullage.gaurd(model)  # wrong: no such name
    ullage.emulate(24)  # wrong: a number is no card
    emulation = ullage.emulate("T4")
    emulation.memory_bytes  # wrong: no such field  # noqa: B018
    guard = ullage.Guard(model, model)  # wrong: a model is no optimizer
    ullage.Guard(model, optimizer, reduction="max")  # wrong: no such reduction
    guard.step(batch, lambda some: some["x"])  # wrong: no dict
    loss: int = guard.step(batch, torch.sum)  # wrong: a tensor
    guard.phase("eval")  # wrong: takes no name
    with ullage.Monitor() as monitor:
        monitor.step(1)  # wrong: takes no number
    monitor.findings[0].bytes  # wrong: no such field  # noqa: B018
    ullage.owners(min_bytes=None)  # wrong: a size
    path: int = ullage.owners()[0].path  # wrong: a text
    ullage.release(model, to="cuda")  # wrong: only the host
    ullage.release(model).after_bytes.hex()  # wrong: a number of bytes
    text: str = ullage.isolated(len, [1])  # wrong: a number
    ullage.isolated(len, [1], timeout_seconds="1 min")  # wrong: seconds
    ullage.TokenBudgetBatchSampler([1, 2], max_tokens=8, oversize="skip")  # wrong: no such choice
    print(loss, path, text)
