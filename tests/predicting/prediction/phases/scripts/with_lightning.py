"""Lightning's Trainer with a sanity check, validation and saving: `with_lightning.py [CHECKPOINT]`."""

import sys
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from measuring import keep, measured
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
CHECKPOINT = sys.argv[1] if len(sys.argv) > 1 else None


class Optimizer(torch.optim.AdamW):
    def load_state_dict(self, state: dict[str, object]) -> None:
        super().load_state_dict(state)
        keep("resuming")  # Lightning restores this last


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
        self.steps = 0

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        if not self.steps:
            keep("loading")
        return self.model(batch[0]).square().mean()

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        self.model(batch[0]).softmax(-1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return Optimizer(self.parameters())

    def on_train_batch_end(self, *arguments: object) -> None:
        self.keep_step()
        self.steps += 1

    def keep_step(self) -> None:
        keep("steady step" if self.steps else "first step")

    def on_validation_start(self) -> None:
        if not self.steps:
            keep("loading")
        torch.cuda.reset_peak_memory_stats()

    def on_validation_end(self) -> None:
        keep("evaluation")

    def on_load_checkpoint(self, checkpoint: object) -> None:
        torch.cuda.reset_peak_memory_stats()


class Saving(ModelCheckpoint):
    def _save_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        trainer.lightning_module.keep_step()  # callbacks are called before the module's own `on_train_batch_end`
        with measured("saving"):
            super()._save_checkpoint(trainer, filepath)


rows = TensorDataset(torch.randn(256, 256))
trainer = pl.Trainer(
    max_steps=6 if CHECKPOINT else 4,
    val_check_interval=2,
    callbacks=[Saving(dirpath="out", filename="{step}", every_n_train_steps=2, save_top_k=-1)],
    logger=False,
    enable_progress_bar=False,
    accelerator="gpu",
    devices=1,
)
trainer.fit(Module(), DataLoader(rows, 32), DataLoader(rows, 128), ckpt_path=CHECKPOINT)
