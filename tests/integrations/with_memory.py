"""Trainings that are watched by callbacks, each on an emulated card; run in a process of its own by test_memory.py."""

import csv
import logging
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import torch
from accelerate import Accelerator
from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter
from transformers import Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

import ullage
from tests.integrations.run import run_the_docs
from ullage.integrations.accelerate import MemoryTracker
from ullage.integrations.lightning import MemoryCallback as LightningCallback
from ullage.integrations.transformers import MemoryTrainerCallback as TransformersCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
warnings.filterwarnings("ignore", module="transformers")
KEPT_BYTES = 64 << 10
STEPS = 60


class Said(logging.Handler):
    """What the monitor's logger is told."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")

    def __enter__(self) -> list[str]:
        logging.getLogger("ullage.monitor").addHandler(self)
        return self.lines

    def __exit__(self, *_: object) -> None:
        logging.getLogger("ullage.monitor").removeHandler(self)


def rows() -> TensorDataset:
    return TensorDataset(torch.zeros(STEPS * 2, 64), torch.zeros(STEPS * 2, 64))


def scalars_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}


class Module(pl.LightningModule):
    """Keeps a tensor of each training step."""

    def __init__(self, *, leaks: bool) -> None:
        super().__init__()
        self.leaks = leaks
        self.linear = nn.Linear(64, 64)
        self.kept: list[torch.Tensor] = []
        self.allocated: dict[int, int] = {}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.leaks:
            self.kept.append(torch.empty(KEPT_BYTES, dtype=torch.uint8, device=self.device))
        loss = nn.functional.mse_loss(self.linear(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.linear(batch[0])

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.linear(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


def lightning() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, Said() as said:
        logger = CSVLogger(folder)
        callback = LightningCallback(reset_peak=True, holders=False)
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="gpu",
            devices=1,
            logger=logger,
            callbacks=[callback],
            log_every_n_steps=7,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        module = Module(leaks=True)
        loader = DataLoader(rows(), batch_size=2)
        trainer.fit(module, loader, loader)
        trainer.test(module, loader, verbose=False)
        logger.save()
        with open(Path(logger.log_dir) / "metrics.csv") as file:
            lines = list(csv.DictReader(file))
        found = [str(finding.kind) for finding in callback.findings]
    return {
        "names": sorted(name for name in lines[0] if name.startswith("memory/")),
        "loss steps": [int(line["step"]) for line in lines if line["loss"]],
        "steps": [int(line["step"]) for line in lines if line.get("memory/train/allocated_bytes")],
        "peaks": [
            int(line["memory/train/peak_allocated_bytes"]) for line in lines if line["memory/train/reserved_bytes"]
        ],
        "allocated": [
            int(line["memory/train/allocated_bytes"]) for line in lines if line["memory/train/reserved_bytes"]
        ],
        "validated": sum(bool(line["memory/validate/allocated_bytes"]) for line in lines),
        "tested": sum(bool(line["memory/test/allocated_bytes"]) for line in lines),
        "said": [line for line in said if "leak" in line],
        "found": found,
        "history": torch._C._cuda_isHistoryEnabled(),
    }


def lightning_on_the_host() -> dict[str, Any]:
    """Nothing is logged where the Trainer does not use the card."""
    with tempfile.TemporaryDirectory() as folder:
        logger = CSVLogger(folder)
        quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=logger,
            callbacks=[LightningCallback()],
            log_every_n_steps=7,
            **quiet,
        )
        trainer.fit(Module(leaks=False), DataLoader(rows(), batch_size=2))
        logger.save()
        with open(Path(logger.log_dir) / "metrics.csv") as file:
            return {"names": sorted(next(csv.reader(file)))}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 3)
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> SequenceClassifierOutput:
        if self.training:
            self.kept.append(torch.empty(KEPT_BYTES, dtype=torch.uint8, device=x.device))
        logits = self.linear(x)
        return SequenceClassifierOutput(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


def transformers(*, is_first: bool) -> dict[str, Any]:
    data = [{"x": torch.zeros(64), "labels": torch.tensor(1)} for _ in range(STEPS * 2)]
    with tempfile.TemporaryDirectory() as folder, Said() as said:
        callback = TransformersCallback(holders=False)
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=2,
            num_train_epochs=1,
            logging_steps=7,
            eval_strategy="steps",
            eval_steps=30,
            save_strategy="no",
            report_to=["tensorboard"],
            logging_dir=f"{folder}/logs",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=Classifier(),
            args=arguments,
            train_dataset=data,
            eval_dataset=data,
            callbacks=[] if is_first else [callback],
        )
        if is_first:
            callback.add_to(trainer)
        trainer.train()
        drawn = scalars_of(Path(folder) / "logs")
        history = trainer.state.log_history
    losses = [one for one in history if "loss" in one]
    return {
        "drawn": {name: [step for step, _ in values] for name, values in drawn.items() if "memory" in name},
        "steps": [one["step"] for one in losses],
        "allocated": [one["memory_allocated_bytes"] for one in losses],
        "evaluated": [one["step"] for one in history if "eval_memory_allocated_bytes" in one],
        "said": [line for line in said if "leak" in line],
        "phases": sorted(callback._watch.monitor._all_series),
    }


def accelerate() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, Said() as said:
        accelerator = Accelerator(log_with="tensorboard", project_dir=folder)
        model, kept = nn.Linear(64, 64), []
        model, optimizer, loader = accelerator.prepare(
            model, torch.optim.AdamW(model.parameters()), DataLoader(rows(), batch_size=2)
        )
        accelerator.init_trackers("run")
        tracker = MemoryTracker(accelerator, holders=False)
        for step, (x, y) in enumerate(loader):
            kept.append(torch.empty(KEPT_BYTES, dtype=torch.uint8, device="cuda"))
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step % 20 == 0:
                logged = {"loss": 1.0}
                accelerator.log(logged, step=step)
        named = accelerator.get_tracker("ullage") is tracker
        steps = tracker.tracker.steps
        accelerator.end_training()
        optimizer.step()
        drawn = scalars_of(Path(folder) / "run")
    return {
        "drawn": {name: [step for step, _ in values] for name, values in drawn.items()},
        "allocated": [value for _, value in drawn["memory/allocated_bytes"]],
        "logged": logged,
        "named": named,
        "steps": [steps, tracker.tracker.steps],
        "said": [line for line in said if "leak" in line],
    }


def scalars() -> dict[str, Any]:
    """By hand, into TensorBoard."""
    x = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer, ullage.Monitor() as monitor:
        for step in range(3):
            monitor.step()
            for name, value in monitor.scalars().items():
                writer.add_scalar(name, value, step)
        writer.flush()
        drawn = scalars_of(Path(folder))
        now = monitor.scalars("")
        says = [torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated()]
    assert x.is_cuda
    return {
        "drawn": {name: len(values) for name, values in drawn.items()},
        "now": now,
        "torch": says,
        "kinds": sorted({type(value).__name__ for value in now.values()}),
    }


def docs() -> list[int]:
    """What the page says runs, and logs."""
    logged: list[dict[str, int]] = []
    accelerator = SimpleNamespace(device=torch.device("cuda:0"), trackers=[])
    accelerator.log = lambda values, step: [one.log(values, step) for one in accelerator.trackers]
    accelerator.trackers.append(SimpleNamespace(log=lambda values, step: logged.append(values)))
    trainer = SimpleNamespace(callback_handler=SimpleNamespace(callbacks=[]))
    names = run_the_docs(
        "Memory in what is logged",
        Trainer=lambda **options: options,
        trainer=trainer,
        accelerator=accelerator,
        wandb=SimpleNamespace(log=lambda values, step: logged.append(values)),
        writer=SimpleNamespace(add_scalar=lambda name, value, step: logged.append({name: value})),
        loader=range(2),
        train=lambda batch: 0.0,
    )
    names["memory"].finish()
    return [names["blocks"], len(logged), len(trainer.callback_handler.callbacks)]


def results() -> dict[str, Any]:
    unused = ullage.Monitor().scalars()  # before CUDA is initialised
    return {
        "unused": [unused, torch.cuda.is_initialized()],
        "lightning on the host": lightning_on_the_host(),
        "scalars": scalars(),
        "lightning": lightning(),
        "transformers": transformers(is_first=True),
        "transformers by callbacks": transformers(is_first=False),
        "accelerate": accelerate(),
        "docs": docs(),
    }
