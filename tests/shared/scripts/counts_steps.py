"""Take steps in the less usual ways."""

import sys

import torch
from torch import nn

how = sys.argv[1]
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
batch = torch.randn(4, 16, device="cuda")


def backward(of: nn.Module = model) -> torch.Tensor:
    loss = of(batch).sum()
    loss.backward()
    return loss


if how == "scaler skips":
    optimizer = torch.optim.SGD(model.parameters())
    scaler = torch.amp.GradScaler()
    scaler._maybe_opt_step = lambda *arguments, **keywords: None  # as with gradients that are not finite
    for _ in range(50):
        with torch.autocast("cuda", torch.float16):
            loss = model(batch).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
elif how == "two optimizers":
    judge = nn.Linear(16, 1).cuda()
    first, second = torch.optim.Adam(judge.parameters()), torch.optim.SGD(model.parameters())
    for step in range(50):
        print("first", step, flush=True)
        backward(judge)
        first.step()
        print("second", step, flush=True)
        backward()
        second.step()
elif how == "closure":
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for _ in range(50):
        optimizer.step(backward)
elif how == "in backward":
    optimizers = {parameter: torch.optim.SGD([parameter]) for parameter in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
    for step in range(50):
        print("pass", step, flush=True)
        backward()
elif how == "accumulates":
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(50):
        print("pass", step, flush=True)
        backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
elif how == "in a thread":
    import threading

    def train() -> None:
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            backward()
            optimizer.step()

    threading.Thread(target=train).start()
