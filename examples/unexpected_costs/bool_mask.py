"""Attention converts a bool mask to a float mask again in every layer, but uses a float mask without conversion."""

import sys

import torch
from torch.nn.functional import scaled_dot_product_attention

layers, tokens = 12, 4096
x = torch.randn(1, 8, tokens, 64, device="cuda", requires_grad=True)
mask = torch.ones(tokens, tokens, dtype=torch.bool, device="cuda").tril()
if "changed" in sys.argv:
    mask = torch.zeros(tokens, tokens, device="cuda").masked_fill_(~mask, float("-inf"))
for _ in range(layers):
    x = scaled_dot_product_attention(x, x, x, attn_mask=mask)
x.sum().backward()
