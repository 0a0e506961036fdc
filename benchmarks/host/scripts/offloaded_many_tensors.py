"""AdamW on the CPU for a model on the card, tensor by tensor: 16 MiB each, which malloc keeps or not as it happens."""

import torch

model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(16))).cuda()
on_host = [parameter.detach().cpu().clone().requires_grad_() for parameter in model.parameters()]
pinned = [torch.empty_like(parameter, device="cpu", pin_memory=True) for parameter in on_host]
optimizer = torch.optim.AdamW(on_host)
for _ in range(3):
    model(torch.randn(32, 2048).cuda()).sum().backward()
    for copy, buffer, parameter in zip(on_host, pinned, model.parameters(), strict=True):
        copy.grad = buffer.copy_(parameter.grad)
    optimizer.step()
    with torch.no_grad():
        for copy, parameter in zip(on_host, model.parameters(), strict=True):
            parameter.copy_(copy)
    model.zero_grad()
