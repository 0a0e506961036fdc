"""A GPT-2 of transformers, trained by its Trainer on made-up tokens."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 50257, (512,))
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(GPT2Config(n_layer=6))
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=16,
    max_steps=20,
    save_strategy="no",
    report_to="none",
    logging_strategy="no",
)
Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
