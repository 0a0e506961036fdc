"""LightningCLI with a small module and made-up data: lightning_cli.py fit --trainer.max_steps 50."""

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader, TensorDataset


class Regression(LightningModule):
    """A network of two layers."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters())

    def train_dataloader(self) -> DataLoader:
        """Return made-up rows."""
        return DataLoader(TensorDataset(torch.randn(4096, 64), torch.randn(4096, 1)), batch_size=128)


if __name__ == "__main__":
    LightningCLI(Regression, seed_everything_default=0)
