"""AdamW on the CPU for a model on the card, in one flat tensor as ZeRO-Offload has it, through pinned memory."""

import torch

model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(16))).cuda()
weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach().cpu().requires_grad_()
gradients = torch.empty_like(weights, pin_memory=True)
optimizer = torch.optim.AdamW([weights])
for _ in range(3):
    model(torch.randn(32, 2048).cuda()).sum().backward()
    gradients.copy_(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    weights.grad = gradients
    optimizer.step()
    torch.nn.utils.vector_to_parameters(weights.detach().cuda(), model.parameters())
    model.zero_grad()
