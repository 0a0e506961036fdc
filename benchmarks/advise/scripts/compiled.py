"""An encoder that is compiled, in single precision."""

import torch
import torch.nn.functional as F
from torch import nn

layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True)
model = nn.Sequential(nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), nn.Linear(512, 10)).cuda()
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(100):
    x = torch.randn(32, 512, 512, device="cuda")
    y = torch.randint(0, 10, (32, 512), device="cuda")
    loss = F.cross_entropy(compiled(x).flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
