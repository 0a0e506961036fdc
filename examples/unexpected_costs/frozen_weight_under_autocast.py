"""Autocast caches the bf16 copy of a trainable weight, but makes a new copy of a frozen weight at every use."""

import sys

import torch

weight = torch.randn(8192, 8192, device="cuda")
x = torch.randn(64, 8192, device="cuda", requires_grad=True)
if "changed" in sys.argv:
    weight = weight.bfloat16()
with torch.autocast("cuda", dtype=torch.bfloat16):
    for _ in range(8):
        x = torch.tanh(x @ weight)
x.float().sum().backward()
