"""One rank of a training run, recorded: `train.py OUT [--batch N] [--leak] [--lengths 96,128,...]`.

`tests.explaining.fleet.made` runs it on emulated cards: the ranks of a fleet, and those that differ from them.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, DEPTH, WORDS = 512, 8, 6, 8192


class Block(nn.Module):
    """Attention and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what attention and the layers make of it."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def main() -> None:
    """Train, and dump what was recorded: at the end, or where memory runs out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--leak", action="store_true")
    parser.add_argument("--lengths", default="256")
    options = parser.parse_args()
    lengths = [int(text) for text in options.lengths.split(",")]
    torch.cuda.memory._record_memory_history(stacks="python")
    embed = nn.Embedding(WORDS, WIDTH).cuda()
    layers = nn.Sequential(*(Block() for _ in range(DEPTH))).cuda()
    head = nn.Linear(WIDTH, WORDS).cuda()
    optimizer = torch.optim.AdamW([*embed.parameters(), *layers.parameters(), *head.parameters()])
    kept = []
    try:
        for step in range(options.steps):
            words = torch.zeros(options.batch, lengths[step % len(lengths)], dtype=torch.long, device="cuda")
            hidden = layers(embed(words))
            loss = F.cross_entropy(head(hidden).flatten(0, 1), words.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if options.leak:
                kept.append(hidden.detach() + 1)
    finally:
        torch.cuda.memory._dump_snapshot(options.out)


main()
