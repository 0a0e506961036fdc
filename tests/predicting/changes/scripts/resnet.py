import torch
import torch.nn.functional as F
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, inside, width, outside, stride):
        super().__init__()
        self.first = nn.Conv2d(inside, width, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.third = nn.Conv2d(width, outside, 1, bias=False)
        self.third_norm = nn.BatchNorm2d(outside)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False) if inside != outside else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm(self.first(x)))
        y = F.relu(self.second_norm(self.second(y)))
        return F.relu(self.third_norm(self.third(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 7, 2, 3)
        self.layer1 = nn.Sequential(Bottleneck(32, 16, 64, 1), Bottleneck(64, 16, 64, 1))
        self.layer2 = nn.Sequential(
            Bottleneck(64, 32, 128, 2), Bottleneck(128, 32, 128, 1), Bottleneck(128, 32, 128, 1)
        )
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        x = self.layer2(self.layer1(F.relu(self.stem(x))))
        return self.head(x.mean(dim=(2, 3)))


def train(model, loader, optimizer, criterion):
    for images, labels in loader:
        images, labels = images.cuda(), labels.cuda()
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()


def main():
    data = torch.utils.data.TensorDataset(torch.randn(64, 3, 64, 64), torch.randint(0, 10, (64,)))
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    model = ResNet()
    model = model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, loader, optimizer, nn.CrossEntropyLoss())


if __name__ == "__main__":
    main()
