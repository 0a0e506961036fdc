import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.norm = nn.GroupNorm(8, inside)
        self.first = nn.Conv2d(inside, outside, 3, padding=1)
        self.second = nn.Conv2d(outside, outside, 3, padding=1)
        self.skip = nn.Conv2d(inside, outside, 1)

    def forward(self, x):
        return self.second(F.silu(self.first(F.silu(self.norm(x))))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.entry = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(Residual(width * 2**n, width * 2 ** (n + 1)) for n in range(2))
        self.up = nn.ModuleList(Residual(width * (2**n + 2 ** (n + 1)), width * 2**n) for n in (1, 0))
        self.exit = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x):
        x, kept = self.entry(x), []
        for block in self.down:
            kept.append(x)
            x = F.max_pool2d(block(x), 2)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], dim=1))
        return self.exit(x)


class Diffusion:
    def __init__(self):
        self.model = UNet().cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def loss(self, images):
        noise = torch.randn_like(images)
        return F.mse_loss(self.model(images + noise), noise)

    def fit(self):
        for _ in range(3):
            images = torch.randn(4, 3, 64, 64, device="cuda")
            loss = self.loss(images)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


Diffusion().fit()
