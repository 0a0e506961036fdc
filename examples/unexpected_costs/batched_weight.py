"""The product of a batch and a weight without a batch dimension keeps one copy of the weight for every sample."""

import sys

import torch

x = torch.randn(64, 8, 16, 512, device="cuda", requires_grad=True)
weight = torch.randn(8, 512, 512, device="cuda", requires_grad=True)
y = torch.einsum("bhtd,hde->bhte", x, weight) if "changed" in sys.argv else x @ weight
y.sum().backward()
