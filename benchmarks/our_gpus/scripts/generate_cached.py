"""Generate with a key-value cache that `torch.cat` makes longer by a token at a time, as a DynamicCache does.

Every token makes new tensors a little larger than the old ones, whose memory stays in PyTorch's cache.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """A transformer block that keeps the keys and values of all tokens so far."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.cache: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        query, key, value = (
            part.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        if self.cache is not None:
            key, value = torch.cat([self.cache[0], key], 2), torch.cat([self.cache[1], value], 2)
        self.cache = key.contiguous(), value.contiguous()
        attended = F.scaled_dot_product_attention(query, *self.cache, is_causal=length > 1)
        x = x + self.project(attended.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(x)


def main() -> None:
    """Read a prompt, then generate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=6)
    options = parser.parse_args()
    with torch.device("cuda"), torch.inference_mode():
        model = nn.Sequential(nn.Embedding(32000, 2048), *(Block(2048, 16) for _ in range(options.layers))).bfloat16()
        head = nn.Linear(2048, 32000).bfloat16()
        words = torch.randint(0, 32000, (options.batch_size, options.length))
        for _ in range(options.tokens):
            words = head(model(words)[:, -1:]).argmax(-1)
    print(f"generated {options.tokens} tokens for {options.batch_size} rows")


if __name__ == "__main__":
    main()
