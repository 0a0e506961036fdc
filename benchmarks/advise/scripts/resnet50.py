"""ResNet-50 of torchvision on made-up pictures from a DataLoader: SGD with momentum, in single precision."""

import argparse

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    pictures = torch.randint(0, 256, (512, 3, 224, 224), dtype=torch.uint8)
    loader = DataLoader(TensorDataset(pictures, torch.randint(0, 1000, (512,))), batch_size=options.batch_size)
    model = torchvision.models.resnet50(num_classes=1000).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for _ in range(3):
        for images, labels in loader:
            images = images.cuda().float().div_(255)
            labels = labels.cuda()
            output = model(images)
            loss = criterion(output, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
