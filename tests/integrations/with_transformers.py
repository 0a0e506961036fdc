"""Trainings with Transformers' Trainer, with and without a guard; run in a process of their own by
test_transformers.py."""

import tempfile
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

from tests.integrations.run import AtMost, at_every, farthest, faults_in_guard, on_a_small_card, run_the_docs
from tests.training.guard.faults import Faults
from ullage.base.errors import UsageError
from ullage.integrations.transformers import Guarded


class GuardedTrainer(Guarded, Trainer):
    said: ClassVar[list[str]] = []
    guard_options: ClassVar[dict[str, Any]] = {"log": said.append}


class Classifier(nn.Module):
    """Takes no `num_items_in_batch`: its loss is a mean over the labels that count."""

    def __init__(self) -> None:
        super().__init__()
        self.limited = AtMost(None)
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> SequenceClassifierOutput:
        logits = self.linear(self.limited(x))
        return SequenceClassifierOutput(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


def gpt2(limit: int | None, dropout: float) -> tuple[nn.Module, AtMost]:
    size = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 17, "n_positions": 12}
    drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    model = GPT2LMHeadModel(GPT2Config(**size, **drop, attn_implementation="eager")).double()
    limited = AtMost(limit)
    model.transformer.wte.register_forward_pre_hook(lambda _, args: limited(args[0]))
    return model, limited


def classifier(limit: int | None, dropout: float) -> tuple[nn.Module, AtMost]:
    model = Classifier().double()
    model.limited.items = limit
    return model, model.limited


def sentences() -> list[dict[str, torch.Tensor]]:
    """Sentences of 12 words of which a different number counts in each; in one, none does."""
    words = torch.randint(0, 17, (22, 12))
    count = torch.randint(0, 12, (22, 1)).index_fill(0, torch.tensor([3]), 0)
    labels = words.where(torch.arange(12) < count, -100)
    return [{"input_ids": one, "labels": label} for one, label in zip(words, labels, strict=True)]


def points() -> list[dict[str, torch.Tensor]]:
    labels = torch.randint(0, 3, (22,)).index_fill(0, torch.tensor([1, 2, 9]), -100)
    return [{"x": x, "labels": label} for x, label in zip(torch.randn(22, 6).double(), labels, strict=True)]


class Training:
    """Six batches of four items at most, two to an optimizer's step."""

    def __init__(self, kind: type[Trainer], build: Any, limit: int | None = None, dropout: float = 0.0, **how: Any):
        torch.manual_seed(0)
        model, self.limited = build(limit, dropout)
        self.folder = tempfile.TemporaryDirectory()
        arguments = {
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "num_train_epochs": 1,
            "learning_rate": 0.05,
            "max_grad_norm": 0.5,
            "logging_steps": 1,
            "use_cpu": True,
            "report_to": [],
            "disable_tqdm": True,
            "save_strategy": "no",
        } | how
        self.trainer = kind(
            model=model,
            args=TrainingArguments(self.folder.name, **arguments),
            train_dataset=sentences() if build is gpt2 else points(),
        )

    def run(self, faults: Faults | None = None) -> list[torch.Tensor]:
        GuardedTrainer.said.clear()
        with self.folder, faults_in_guard(faults or Faults()):
            self.trainer.train()
        history = [entry for entry in self.trainer.state.log_history if "loss" in entry]
        said = torch.tensor([[entry["loss"], entry["grad_norm"]] for entry in history])
        return [*(parameter.detach() for parameter in self.trainer.model.parameters()), said.double()]


def split(build: Any, limit: int, **how: Any) -> dict[str, Any]:
    bare = Training(Trainer, build, **how).run()
    training = Training(GuardedTrainer, build, limit, **how)
    return {"farthest": farthest(bare, training.run()), "parts": training.limited.seen}


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> SequenceClassifierOutput:
        logits = self.layers(x)
        return SequenceClassifierOutput(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


def on_card() -> dict[str, Any]:
    """Two steps in fp16 of a batch that does not fit at once."""

    def train(kind: type[Trainer]) -> Trainer:
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder, per_device_train_batch_size=512, max_steps=2, fp16=True, report_to=[], disable_tqdm=True
            )
            row = {"x": torch.zeros(32, 512), "labels": torch.zeros(32, dtype=torch.long)}
            trainer = kind(model=Wide(), args=arguments, train_dataset=[row] * 1024, data_collator=joined)
            trainer.train()
        return trainer

    GuardedTrainer.said.clear()
    steps = on_a_small_card(160 << 20, lambda: train(Trainer), lambda: train(GuardedTrainer).state.global_step)
    return steps | {"said": list(GuardedTrainer.said)}


def joined(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def docs() -> int:
    model, _ = gpt2(None, 0.1)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(folder, use_cpu=True, report_to=[], disable_tqdm=True, max_steps=3)
        names = run_the_docs("Transformers", model=model, args=args, dataset=sentences())
    return int(names["trainer"].state.global_step)


def refused() -> str:
    """LOMO, whose backward changes parameters, is called with a learning rate."""
    training = Training(GuardedTrainer, classifier)
    training.trainer.create_optimizer()
    training.trainer.args.optim = "lomo"
    try:
        training.run()
    except UsageError as error:
        return str(error)
    return ""


def order() -> str:
    try:
        type("Unguarded", (Trainer, Guarded), {})
    except UsageError as error:
        return str(error)
    return ""


def restored() -> dict[str, bool]:
    """Which methods are the accelerator's and the optimizer's own: in a step, and after training."""
    training = Training(GuardedTrainer, gpt2)
    trainer = training.trainer
    during: list[bool] = []

    def own() -> bool:
        return "clip_grad_norm_" not in vars(trainer.accelerator) and "step" not in vars(trainer.optimizer)

    training.limited.register_forward_hook(lambda *_: during.append(own()))
    training.run()
    return {"during": any(during), "steps": bool(during), "after": own()}


def results() -> dict[str, Any]:
    return {
        "restored": restored(),
        "card": on_card(),
        "docs": docs(),
        "refused": refused(),
        "order": order(),
        "guarded": farthest(
            Training(Trainer, gpt2, dropout=0.1).run(), Training(GuardedTrainer, gpt2, dropout=0.1).run()
        ),
        "faults": at_every(61, lambda faults: Training(GuardedTrainer, gpt2, dropout=0.1).run(faults)),
        "tokens": split(gpt2, 3),
        "smoothed": split(gpt2, 3, label_smoothing_factor=0.1),
        "labels": split(classifier, 3),
    }
