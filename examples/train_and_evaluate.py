"""Train a small model; every second step evaluate it and write a checkpoint, from which `--resume` goes on."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--resume")
options = parser.parse_args()

CLASSES, WIDTH, BATCH = 10_000, 512, 256
model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, CLASSES)).cuda()
optimizer = torch.optim.AdamW(model.parameters())


@torch.no_grad()
def evaluate() -> float:
    """Return the accuracy; all predictions are kept until the end, as in many a script."""
    model.eval()
    logits = [model(torch.randn(BATCH, WIDTH, device="cuda")) for _ in range(16)]
    right = torch.cat(logits).argmax(-1) == 0
    model.train()
    return right.float().mean().item()


def save(path: str) -> None:
    """Write what is needed to go on."""
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def resume(path: str) -> None:
    """Go on from a checkpoint, which is read to the card: there it lies beside the model."""
    checkpoint = torch.load(path, map_location="cuda")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])


if options.resume:
    resume(options.resume)
for step in range(1, options.steps + 1):
    inputs, classes = torch.randn(BATCH, WIDTH, device="cuda"), torch.randint(CLASSES, (BATCH,), device="cuda")
    nn.functional.cross_entropy(model(inputs), classes).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 2 == 0:
        print(f"step {step}: accuracy {evaluate():.3f}")
        save("checkpoint.pt")
