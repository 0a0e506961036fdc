"""A small diffusion U-Net that learns to tell noise from pictures, made up in the loop."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(8, outside), nn.SiLU(), nn.Conv2d(outside, outside, 3, padding=1))
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()
        self.time = nn.Linear(128, outside)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.first(x) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.second(h)


class UNet(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 128), nn.SiLU(), nn.Linear(128, 128))
        self.head = nn.Conv2d(3, width, 3, padding=1)
        sizes = [width, width * 2, width * 4]
        self.down = nn.ModuleList([Residual(a, b) for a, b in zip([width, *sizes], sizes, strict=False)])
        self.middle = nn.ModuleList([Residual(sizes[-1], sizes[-1]) for _ in range(2)])
        self.up = nn.ModuleList(
            [Residual(a + b, b) for a, b in zip(reversed(sizes), [sizes[1], sizes[0], width], strict=True)]
        )
        self.tail = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        t = self.time(t[:, None])
        x, kept = self.head(x), []
        for block in self.down:
            kept.append(x)
            x = F.avg_pool2d(block(x, t), 2)
        for block in self.middle:
            x = block(x, t)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0)
            skip = kept.pop()
            x = block(torch.cat([x, skip], dim=1), t)
        return self.tail(x)


model = UNet().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(100):
    clean = torch.rand(16, 3, 128, 128, device="cuda")
    noise = torch.randn_like(clean)
    t = torch.rand(16, device="cuda")
    noisy = clean + t[:, None, None, None] * noise
    predicted = model(noisy, t)
    loss = F.mse_loss(predicted, noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
