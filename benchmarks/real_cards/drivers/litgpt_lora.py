"""Run litgpt's own LoRA with one of its configurations, on made-up sequences, without weights or a tokenizer.

    litgpt_lora.py CONFIGURATION STEPS

The weights stay as they are made: litgpt makes them on the card and loads into them. Every sequence is as long as the
configuration allows, because the longest batch decides the peak.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from litgpt.args import EvalArgs, TrainArgs
from litgpt.data import DataModule, get_sft_collate_fn
from litgpt.finetune import lora
from torch.utils.data import DataLoader

_SEQUENCES = 64


class _Tokenizer:
    """Asked for nothing but its presence where no text is made."""

    def __init__(self, *_: object) -> None:
        self.eos_id = 0


class _Longest(DataModule):
    """Sequences of zeros, all as long as the longest."""

    def connect(self, tokenizer: object = None, batch_size: int = 1, max_seq_length: int | None = None) -> None:
        self.batch_size, self.length = batch_size, max_seq_length or 512

    def train_dataloader(self) -> DataLoader[dict[str, torch.Tensor]]:
        tokens = torch.zeros(self.length, dtype=torch.int64)
        samples: Any = [{"input_ids": tokens, "labels": tokens}] * _SEQUENCES
        return DataLoader(samples, batch_size=self.batch_size, collate_fn=get_sft_collate_fn(self.length))

    val_dataloader = train_dataloader


def _nothing(*_: object, **__: object) -> None:
    """What would read or write files of weights."""


def main() -> None:
    """Run it as its command line would."""
    given = yaml.safe_load(Path(sys.argv[1]).read_text())
    name = Path(given["checkpoint_dir"]).name
    config_of: Callable[..., Any] = lora.Config.from_name
    lora.Config.from_file = staticmethod(lambda _, **fields: config_of(name, **fields))
    lora.Tokenizer = _Tokenizer
    lora.auto_download_checkpoint = lambda model_name, **_: Path(model_name)
    for what in ("check_valid_checkpoint_dir", "load_checkpoint", "save_lora_checkpoint", "copy_config_files"):
        setattr(lora, what, _nothing)
    for what in ("save_hyperparameters", "save_prompt_style", "merge_lora"):
        setattr(lora, what, _nothing)
    train = {key: value for key, value in given.pop("train").items() if value is not None} | {
        "max_steps": int(sys.argv[2])
    }
    evaluation = given.pop("eval") | {"final_validation": False}
    given |= {"data": _Longest(), "train": TrainArgs(**train), "eval": EvalArgs(**evaluation)}
    lora.setup(**{**given, "checkpoint_dir": Path(name), "out_dir": Path("out")})


if __name__ == "__main__":
    main()
