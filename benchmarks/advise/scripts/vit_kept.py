"""A vision transformer whose loop keeps the last step's outputs and its zeroed gradients."""

import torch
import torch.nn.functional as F
import torchvision

model = torchvision.models.vit_b_16(num_classes=100).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
history = []
for _ in range(100):
    images = torch.rand(32, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 100, (32,), device="cuda")
    optimizer.zero_grad(set_to_none=False)
    with torch.autocast("cuda", dtype=torch.float16, enabled=False):
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
    loss.backward()
    optimizer.step()
    history.append(loss.item())
