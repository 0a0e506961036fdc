"""Half a gigabyte of data in the host's memory, and a step for each of three parts of it."""

import sys

import torch

data = torch.randn(1 << 17, 1 << 10)
model = torch.nn.Linear(1 << 10, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in data.split(256)[:3]:
    model(batch.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
with open("/proc/self/status") as status:
    print(*(line for line in status if line.startswith("VmHWM")), file=sys.stderr, flush=True)
