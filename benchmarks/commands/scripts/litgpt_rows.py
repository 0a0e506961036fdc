"""Made-up rows for `litgpt pretrain --data litgpt_rows.Rows`: its own data modules need litdata or a download."""

from typing import Any

import torch
from litgpt.data import DataModule
from torch.utils.data import DataLoader


class Rows(DataModule):
    """Rows of one length."""

    def __init__(self, count: int = 512) -> None:
        super().__init__()
        self.count = count
        self.batch_size, self.length = 1, 1

    def connect(
        self, tokenizer: Any = None, batch_size: int = 1, max_seq_length: int | None = None, **_: object
    ) -> None:
        """Take what the training asks for."""
        self.batch_size, self.length = batch_size, max_seq_length or 128

    def train_dataloader(self) -> DataLoader:
        """Return batches of numbers of tokens, one more than the length: the last is a target only."""
        return DataLoader(torch.randint(0, 64, (self.count, self.length + 1)), batch_size=self.batch_size)

    val_dataloader = train_dataloader
