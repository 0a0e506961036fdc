"""A checkpoint that is loaded twice, an array, and an optimizer whose state is on the host."""

import io

import numpy as np
import torch

weights = torch.ones(2 << 20, requires_grad=True)
file = io.BytesIO()
torch.save({"weights": weights.detach()}, file)
first = torch.load(io.BytesIO(file.getvalue()))
second = torch.load(io.BytesIO(file.getvalue()))
array = np.ones((3, 1 << 20), np.float32)
optimizer = torch.optim.AdamW([weights], foreach=False)
weights.sum().cuda()
weights.grad = torch.ones_like(weights)
optimizer.step()
