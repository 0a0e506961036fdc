"""Train on the CPU: there is nothing to judge."""

import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())
model(torch.randn(2, 8)).sum().backward()
optimizer.step()
