"""Train torchvision's ResNet-50 on made-up pictures."""

import argparse

import torch
import torch.nn.functional as F
from torchvision.models import resnet50

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--steps", type=int, default=2)
options = parser.parse_args()

with torch.device("cuda"):
    model = resnet50()
    pictures = torch.randn(options.batch_size, 3, 224, 224)
    labels = torch.randint(0, 1000, (options.batch_size,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(options.steps):
    loss = F.cross_entropy(model(pictures), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.4f}")
