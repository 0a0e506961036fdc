"""The same losses under a plain guard, the Trainer, Lightning and Accelerate, with the same errors of memory.

Each training is run bare, with one error at operations spread over it, and with a batch that fits in parts only.
"""

import logging
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import ullage
from tests.integrations.run import AtMost, at_every, farthest, faults_in_guard
from tests.training.guard.faults import Faults
from ullage.integrations.accelerate import guard as guard_of
from ullage.integrations.lightning import GuardCallback
from ullage.integrations.transformers import Guarded

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")

ITEMS, STEPS, WIDTH, WORDS, IGNORED = 8, 3, 6, 11, -100
FEWEST = 4
"""The items that fit at once in a run in parts."""


class Counting(torch.autograd.Function):
    """Scales gradients by a factor that grows with each backward."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        Counting.calls += 1
        return gradient * Counting.calls


class Model(nn.Module):
    """Words to words, with a loss of the test's."""

    def __init__(self, loss: Callable[["Model", Any], torch.Tensor], limit: int | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.limited = AtMost(limit)
        self.embed, self.inner, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)
        self.bank = torch.zeros(WIDTH)
        self._loss = loss
        Counting.calls = 0

    def hidden(self, words: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(self.limited(self.embed(words))))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, keep: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self._loss(self, {"input_ids": input_ids, "labels": labels, "keep": keep})}


def tokens(model: Model, batch: Any) -> torch.Tensor:
    """A mean over the labels that count, of which items have different numbers."""
    return F.cross_entropy(model.head(model.hidden(batch["input_ids"])).flatten(0, 1), batch["labels"].flatten())


def masked(model: Model, batch: Any) -> torch.Tensor:
    """A mean over a mask."""
    losses = model.head(model.hidden(batch["input_ids"])).pow(2).mean(-1)
    return (losses * batch["keep"]).sum() / batch["keep"].sum()


def contrastive(model: Model, batch: Any) -> torch.Tensor:
    """Each item is compared with all others."""
    found = F.normalize(model.hidden(batch["input_ids"]).mean(1), dim=1)
    return F.cross_entropy(found @ found.roll(1, 0).T / 0.3, torch.arange(len(found)))


def banked(model: Model, batch: Any) -> torch.Tensor:
    """Forward moves a mean that the loss depends on."""
    hidden = model.hidden(batch["input_ids"])
    model.bank = 0.9 * model.bank + 0.1 * hidden.detach().mean((0, 1))
    return (hidden - model.bank).pow(2).mean() + model.head(hidden).pow(2).mean()


def counted(model: Model, batch: Any) -> torch.Tensor:
    """Backward of a custom Function depends on how often it ran."""
    return model.head(Counting.apply(model.hidden(batch["input_ids"]))).pow(2).mean()


ADDING_UP = (tokens, masked)
NOT_ADDING_UP = (contrastive, banked, counted)


def rows() -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    words = torch.randint(0, WORDS, (STEPS * ITEMS, 5))
    counts = 1 + torch.arange(STEPS * ITEMS) % ITEMS // 2
    exists = torch.arange(5) < counts[:, None]
    labels = words.roll(1, 1).masked_fill(~exists, IGNORED)
    keep = exists.to(torch.get_default_dtype())
    return [
        dict(zip(("input_ids", "labels", "keep"), one, strict=True)) for one in zip(words, labels, keep, strict=True)
    ]


def plain(model: Model, faults: Faults, *, is_guarded: bool) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    guard = ullage.Guard(model, optimizer, log=lambda _: None)
    for batch in DataLoader(rows(), batch_size=ITEMS):
        if is_guarded:
            with faults_in_guard(faults):
                guard.step(batch, lambda part: model(**part)["loss"])
            continue
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()


def accelerated(model: Model, faults: Faults, *, is_guarded: bool) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(rows(), batch_size=ITEMS)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.3), loader)
    guard = guard_of(accelerator, model, optimizer, log=lambda _: None)
    for batch in loader:
        if is_guarded:
            with faults_in_guard(faults), accelerator.accumulate(model):
                guard.step(batch, lambda part: model(**part)["loss"])
            continue
        optimizer.zero_grad()
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()


class GuardedTrainer(Guarded, Trainer):
    guard_options = {"log": lambda _: None}  # noqa: RUF012


def trained(model: Model, faults: Faults, *, is_guarded: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, faults_in_guard(faults):
        options = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "lr_scheduler_type": "constant"}
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=ITEMS, num_train_epochs=1, use_cpu=True, learning_rate=0.3, **options
        )
        kind = GuardedTrainer if is_guarded else Trainer
        trainer = kind(
            model=model,
            args=arguments,
            train_dataset=rows(),
            optimizers=(torch.optim.SGD(model.parameters(), lr=0.3), None),
        )
        trainer.train()


class Lit(pl.LightningModule):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch)["loss"]
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.3)


def lit(model: Model, faults: Faults, *, is_guarded: bool) -> None:
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"),
        False,
    )
    callbacks = [GuardCallback(log=lambda _: None)] if is_guarded else []
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=callbacks, **quiet)
    with faults_in_guard(faults):
        trainer.fit(Lit(model), DataLoader(rows(), batch_size=ITEMS))


RUNS = {"a plain loop": plain, "Accelerate": accelerated, "Trainer": trained, "Lightning": lit}


def left(
    run: Any, loss: Any, faults: Faults | None = None, *, limit: int | None = None, is_guarded: bool = True
) -> Any:
    model = Model(loss, limit)
    run(model, faults or Faults(), is_guarded=is_guarded)
    return [parameter.detach().clone() for parameter in model.parameters()]


def results() -> dict[str, Any]:
    torch.set_default_dtype(torch.float64)
    found = {}
    for framework, run in RUNS.items():
        for loss in (*ADDING_UP, *NOT_ADDING_UP):
            bare = left(run, loss, is_guarded=False)
            whole = at_every(97, lambda faults, run=run, loss=loss: left(run, loss, faults))
            try:
                parts: Any = farthest(bare, left(run, loss, limit=FEWEST))
            except torch.OutOfMemoryError as error:
                parts = " ".join(note for note in error.__notes__ if "not split" in note)
            found[f"{framework}, {loss.__name__}"] = {
                "guarded": farthest(bare, left(run, loss)),
                "whole": whole,
                "parts": parts,
                "is split": loss in ADDING_UP,
            }
    return found
