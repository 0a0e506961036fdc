"""Weights in files and pictures in folders that are not here."""

import torch
import torchvision
from safetensors.torch import load_file
from torchvision.transforms import ToTensor

model = torchvision.models.resnet18(weights="DEFAULT").cuda()
checkpoint = torch.load("missing.pt", map_location="cpu")
model.load_state_dict(checkpoint["model"])
model.load_state_dict(load_file("missing.safetensors"))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
optimizer.load_state_dict(checkpoint["optimizer"])
assert checkpoint["epoch"] + 1 == 1

pictures = torchvision.datasets.ImageFolder("missing/train", transform=ToTensor())
assert len(pictures) == 8
assert len(pictures.classes) == 3
assert pictures[0][0].shape == (3, 40, 48)
digits = torchvision.datasets.FashionMNIST("missing", transform=ToTensor())
assert digits[0][0].shape == (1, 28, 28)
small = torchvision.datasets.CIFAR100("missing", transform=ToTensor())
assert small[0][0].shape == (3, 32, 32)
for images, labels in torch.utils.data.DataLoader(pictures, batch_size=4):
    torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda()).backward()
    optimizer.step()
