"""A data set of 1 GiB that lies in the host's memory."""

import torch

data = torch.randn(1 << 18, 1 << 10)
model = torch.nn.Linear(1 << 10, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in data.split(256)[:3]:
    model(batch.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
