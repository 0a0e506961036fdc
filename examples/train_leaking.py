"""Train an encoder and keep the output of every step, for a mean in the end: plain PyTorch, nothing of ullage in it.

ullage run --gpu "RTX 3060" examples/train_leaking.py                # comes to its end, and is told what grows
ullage run --gpu "RTX 3060" examples/train_leaking.py --steps 500    # runs out of memory, and is told why
"""

import argparse

import torch
from torch import nn


def train(model: nn.Module, steps: int) -> float:
    optimizer = torch.optim.AdamW(model.parameters())
    outputs = []
    for _ in range(steps):
        output = model(torch.randn(8, 512, 1024, device="cuda"))
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(output.detach())  # 16 MiB a step, of which nothing is needed but a mean
    return float(torch.stack([output.mean() for output in outputs]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    layer = nn.TransformerEncoderLayer(1024, 16, batch_first=True)
    print(f"mean output {train(nn.TransformerEncoder(layer, 6).cuda(), options.steps):.3f}")


if __name__ == "__main__":
    main()
