"""The sparse gradient of an embedding has a row for every token of the batch, including repeated tokens."""

import sys

import torch

embedding = torch.nn.Embedding(1000, 1024, sparse="changed" not in sys.argv).cuda()
tokens = torch.randint(1000, (64, 1024), device="cuda")
for _ in range(4):  # micro-batches
    embedding(tokens).mean().backward()
