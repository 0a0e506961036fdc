"""Transformers' Trainer with evaluation and saving, each measured by the script: `with_trainer.py [CHECKPOINT]`."""

import sys

import torch
from measuring import keep, measured
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Rows(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.arange(64) + index
        return {"input_ids": row, "labels": row}


class Measured(Trainer):
    steps = 0

    def compute_loss(self, model, inputs, *arguments, **keywords):
        if model.training and not self.steps:
            keep("loading")
        return super().compute_loss(model, inputs, *arguments, **keywords)

    def evaluate(self, *arguments, **keywords):
        with measured("evaluation"):
            return super().evaluate(*arguments, **keywords)

    def _save_checkpoint(self, *arguments, **keywords):
        with measured("saving"):
            return super()._save_checkpoint(*arguments, **keywords)

    def _load_from_checkpoint(self, *arguments, **keywords):
        keep("loading")
        super()._load_from_checkpoint(*arguments, **keywords)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint:
            keep("resuming")


class Steps(TrainerCallback):
    def on_step_end(self, *arguments, **keywords):
        keep("steady step" if trainer.steps else "first step")
        trainer.steps += 1


model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=1000))
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=8,
    per_device_eval_batch_size=16,
    max_steps=6 if len(sys.argv) > 1 else 4,
    eval_strategy="steps",
    eval_steps=2,
    save_steps=2,
    report_to=[],
    disable_tqdm=True,
)
trainer = Measured(model, arguments, train_dataset=Rows(200), eval_dataset=Rows(48), callbacks=[Steps()])
trainer.train(resume_from_checkpoint=sys.argv[1] if len(sys.argv) > 1 else None)
