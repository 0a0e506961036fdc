"""Parts for a torchtune configuration: made-up weights, words and rows in place of a download."""

from typing import Any

import torch
from torch.utils.data import Dataset
from torchtune import training
from torchtune.models.llama2 import llama2

SIZES = {"vocab_size": 1024, "num_layers": 4, "num_heads": 8, "num_kv_heads": 4, "embed_dim": 512, "max_seq_len": 512}


def model() -> torch.nn.Module:
    """Return a small Llama."""
    return llama2(**SIZES)


class Weights:
    """Stand in for a checkpointer: random weights of the model above, and nothing is saved."""

    def __init__(self, **_: object) -> None:
        """Take what a recipe gives to a checkpointer."""

    def load_checkpoint(self) -> dict[str, Any]:
        """Return weights on the host."""
        with torch.device("cpu"):
            return {training.MODEL_KEY: model().state_dict()}

    def save_checkpoint(self, *_: object, **__: object) -> None:
        """Save nothing."""


class Words:
    """Stand in for a tokenizer: the rows below are numbers already."""

    pad_id = 0
    max_seq_len = SIZES["max_seq_len"]


class Rows(Dataset):
    """Rows of one length."""

    def __init__(self, tokenizer: Words, count: int = 512) -> None:
        self.length, self.count = tokenizer.max_seq_len, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> dict[str, list[int]]:
        if place >= self.count:
            raise IndexError(place)
        tokens = [1 + (place + at) % 1000 for at in range(self.length)]
        return {"tokens": tokens, "labels": tokens}
