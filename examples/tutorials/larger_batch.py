"""Train a GPT-2-like model; `--empty-cache` and `--chunks` change one thing each."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--empty-cache", action="store_true", help="Call torch.cuda.empty_cache() after every step.")
parser.add_argument("--chunks", type=int, default=1, help="Compute the loss in this many checkpointed chunks.")
options = parser.parse_args()

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 50257, 960, 768, 12, 12


class Block(nn.Module):
    """Causal attention and a feed-forward network."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


with torch.device("cuda"):
    embedding = nn.Embedding(VOCABULARY, WIDTH)
    body = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
    head = nn.Linear(WIDTH, VOCABULARY, bias=False)
head.weight = embedding.weight
optimizer = torch.optim.AdamW([*embedding.parameters(), *body.parameters()])


def loss_of(hidden, targets):
    return F.cross_entropy(head(hidden).float(), targets, reduction="sum")


for _ in range(100):
    tokens = torch.randint(0, VOCABULARY, (options.batch_size, LENGTH + 1)).cuda()
    targets = tokens[:, 1:].flatten()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        hidden = body(embedding(tokens[:, :-1])).flatten(0, 1)
        chunks = list(zip(hidden.chunk(options.chunks), targets.chunk(options.chunks), strict=True))
        if len(chunks) == 1:
            loss = loss_of(hidden, targets) / len(targets)
        else:
            loss = sum(checkpoint(loss_of, *chunk, use_reentrant=False) for chunk in chunks) / len(targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if options.empty_cache:
        torch.cuda.empty_cache()
