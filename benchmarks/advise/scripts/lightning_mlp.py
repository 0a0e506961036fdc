"""A mixer of patches in Lightning, on made-up pictures."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, tokens * 2), nn.GELU(), nn.Linear(tokens * 2, tokens))
        self.along = nn.Sequential(nn.Linear(width, width * 4), nn.GELU(), nn.Linear(width * 4, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norm2(x))


class Mixer(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 512, 16, 16)
        self.blocks = nn.Sequential(*[Block(196, 512) for _ in range(8)])
        self.head = nn.Linear(512, 100)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        images, labels = batch
        x = self.patches(images).flatten(2).transpose(1, 2)
        return F.cross_entropy(self.head(self.blocks(x).mean(1)), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


data = TensorDataset(torch.rand(256, 3, 224, 224), torch.randint(0, 100, (256,)))
trainer = L.Trainer(
    max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(Mixer(), DataLoader(data, batch_size=64))
