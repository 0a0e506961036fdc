"""Use the card without an optimizer, to the end."""

import torch

with torch.no_grad():
    tensor = torch.nn.Linear(512, 512).cuda()(torch.randn(64, 512, device="cuda"))
print(tensor.shape)
