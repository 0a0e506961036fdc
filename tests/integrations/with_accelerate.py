"""Trainings with Accelerate, with and without a guard; run in a process of their own by test_accelerate.py."""

from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.integrations.run import AtMost, at_every, farthest, faults_in_guard, on_a_small_card, run_the_docs
from tests.training.guard.faults import Faults
from ullage.base.errors import UsageError
from ullage.integrations.accelerate import guard as guard_of


class Training:
    """Two epochs, accumulating two batches, with clipping and a scheduler that counts."""

    def __init__(self, limit: int | None = None, *, scale: float | None = None) -> None:
        torch.manual_seed(0)
        AcceleratorState._reset_state(reset_partial_state=True)
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        if scale is not None:  # Accelerate itself makes one for a card only
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        self.at_most = AtMost(limit)
        model = nn.Sequential(self.at_most, nn.Linear(4, 16), nn.Dropout(0.0 if limit else 0.1), nn.Linear(16, 2))
        kind = torch.float64 if scale is None else torch.float32
        data = TensorDataset(torch.randn(36, 4, dtype=kind), torch.randn(36, 2, dtype=kind))
        optimizer = torch.optim.AdamW(model.to(kind).parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=20)
        self.model, self.optimizer, self.loader, self.scheduler = self.accelerator.prepare(
            model, optimizer, DataLoader(data, batch_size=8), scheduler
        )
        if scale is not None:
            self.accelerator.native_amp, self.accelerator.state._mixed_precision = True, "fp16"

    def loss_of(self, batch: Any) -> torch.Tensor:
        return 8 * nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def bare(self) -> list[torch.Tensor]:
        for batch in chain(self.loader, self.loader):
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.loss_of(batch))
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 0.5)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
        return self.left()

    def guarded(self, faults: Faults | None = None) -> list[torch.Tensor]:
        self.said: list[str] = []
        guard = guard_of(
            self.accelerator,
            self.model,
            self.optimizer,
            scheduler=self.scheduler,
            clip_grad_norm=0.5,
            log=self.said.append,
        )
        with faults_in_guard(faults or Faults()):
            for batch in chain(self.loader, self.loader):
                with self.accelerator.accumulate(self.model):
                    guard.step(batch, self.loss_of)
        return self.left()

    def left(self) -> list[torch.Tensor]:
        counts = torch.tensor([self.scheduler.get_last_lr()[0], float(self.scheduler.scheduler._step_count)])
        return [*(parameter.detach().clone() for parameter in self.model.parameters()), counts.double()]


def on_card() -> dict[str, Any]:
    """Three steps in fp16, whose scaler Accelerate has, of a batch that does not fit at once."""

    def prepared() -> tuple[Any, ...]:
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = Accelerator(mixed_precision="fp16")
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
        optimizer = torch.optim.AdamW(model.parameters())
        return accelerator, *accelerator.prepare(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1))

    def bare() -> None:
        accelerator, model, *_ = prepared()
        accelerator.backward(model(torch.zeros(16384, 512, device="cuda")).float().mean())

    def guarded() -> list[Any]:
        accelerator, model, optimizer, scheduler = prepared()
        said: list[str] = []
        guard = guard_of(accelerator, model, optimizer, scheduler=scheduler, clip_grad_norm=1.0, log=said.append)
        for _ in range(3):
            guard.step(torch.zeros(16384, 512, device="cuda"), lambda x: model(x).float().mean())
        return [said, scheduler.scheduler.last_epoch, optimizer.step_was_skipped]

    return on_a_small_card(160 << 20, bare, guarded)


def docs() -> int:
    training = Training()

    class Model(nn.Linear):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return SimpleNamespace(loss=nn.functional.mse_loss(super().forward(x), y))

    model = Model(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    rows = [{"x": torch.ones(4), "y": torch.ones(2)}] * 24
    names = run_the_docs(
        "Accelerate",
        accelerator=training.accelerator,
        model=model,
        optimizer=optimizer,
        loader=DataLoader(rows, batch_size=8),
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1),
    )
    return int(names["scheduler"].scheduler.last_epoch)


def refused() -> str:
    accelerator = SimpleNamespace(distributed_type=DistributedType.DEEPSPEED)
    try:
        guard_of(accelerator, nn.Linear(1, 1), None)
    except UsageError as error:
        return str(error)
    return ""


def results() -> dict[str, Any]:
    split = Training(3)
    too_large = 2.0**127  # gradients are infinite until it has been halved a few times
    return {
        "guarded": farthest(Training().bare(), Training().guarded()),
        "scaled": farthest(Training(scale=too_large).bare(), Training(scale=too_large).guarded()),
        "steps": [float(Training(scale=scale).guarded()[-1][1]) for scale in (1.0, too_large)],
        "scaled faults": at_every(101, lambda faults: Training(scale=too_large).guarded(faults)),
        "docs": docs(),
        "refused": refused(),
        "faults": at_every(43, lambda faults: Training().guarded(faults)),
        "split": farthest(Training(100).bare(), split.guarded()),
        "card": on_card(),
        "parts": split.at_most.seen[:6],
    }
