"""Trainings with Lightning, with and without a guard; run in a process of their own by test_lightning.py."""

import functools
import logging
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from tests.integrations.run import AtMost, at_every, farthest, faults_in_guard, on_a_small_card, run_the_docs
from tests.training.guard.faults import Faults
from ullage.base.errors import UsageError
from ullage.integrations.lightning import GuardCallback, guard

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


QUIET = {
    "max_epochs": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Quiet(pl.LightningModule):
    def __init__(self, limit: int | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.limited = AtMost(limit)
        self.layers = nn.Sequential(self.limited, nn.Linear(4, 16), nn.Dropout(dropout), nn.Linear(16, 2)).double()

    def loss_of(self, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(self.layers(batch[0]).to(batch[1].dtype), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2), "interval": "step"}]


class Module(Quiet):
    """Logs in every way: a step's value and an epoch's, a sum, a metric that counts."""

    def __init__(self, limit: int | None = None, dropout: float = 0.0) -> None:
        super().__init__(limit, dropout)
        self.mean = MeanMetric().set_dtype(torch.float64)
        self.outputs: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.mean.update(batch[1])
        loss = self.loss_of(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("items", float(len(batch[0])), on_step=False, on_epoch=True, reduce_fx="sum")
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        return {"loss": loss, "rows": batch[1]}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.outputs += [float(value.sum()) for value in outputs.values()]
        self.outputs.append(float(self.trainer.callback_metrics["loss_step"]))


class SkipsOne(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        output = super().training_step(batch, batch_idx)
        return None if batch_idx == 1 else output


class Manual(Module):
    """Optimizes by itself, in Lightning's own way."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        optimizer = self.optimizers()
        loss = self.loss_of(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return {"loss": loss, "rows": batch[1]}


class ManualGuarded(Manual):
    def on_train_start(self) -> None:
        self.guard = guard(self, log=lambda line: None)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        loss = self.guard.step(batch, self.loss_of)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return {"loss": loss, "rows": batch[1]}


def train(module: Module, faults: Faults | None = None, *callbacks: pl.Callback, **how: Any) -> list[torch.Tensor]:
    """Train two epochs of five batches, the last of which is small; return all that is left."""
    torch.manual_seed(1)
    kind = next(module.parameters()).dtype
    data = TensorDataset(torch.randn(19, 4, dtype=kind), torch.randn(19, 2, dtype=kind))
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=list(callbacks),
        log_every_n_steps=1,
        **QUIET | {"max_epochs": 2} | how,
    )
    with faults_in_guard(faults or Faults()):
        trainer.fit(module, DataLoader(data, batch_size=4))
    metrics = [float(value) for _, value in sorted(trainer.callback_metrics.items())]
    left = torch.tensor([*metrics, *module.outputs, trainer.global_step]).double()
    return [*(parameter.detach() for parameter in module.parameters()), left]


AUTOMATIC = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3}


def guarded(module: Module, faults: Faults | None = None) -> list[torch.Tensor]:
    return train(module, faults, GuardCallback(log=lambda line: None), **AUTOMATIC)


class Wide(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.layers(batch[0]).float().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


def on_card() -> dict[str, Any]:
    """Two steps in fp16, whose scaler Lightning has, of a batch that does not fit at once."""
    said: list[str] = []

    def steps(*callbacks: pl.Callback) -> int:
        trainer = pl.Trainer(
            accelerator="gpu", precision="16-mixed", callbacks=list(callbacks), gradient_clip_val=1.0, **QUIET
        )
        trainer.fit(Wide(), DataLoader(TensorDataset(torch.zeros(2 * 16384, 512)), batch_size=16384))
        return int(trainer.global_step)

    return on_a_small_card(160 << 20, steps, lambda: steps(GuardCallback(log=said.append))) | {"said": said}


def docs() -> list[int]:
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(8, 4).double(), torch.randn(8, 2).double()), batch_size=4)
    quiet = functools.partial(pl.Trainer, **{name: value for name, value in QUIET.items() if name != "max_epochs"})
    names = run_the_docs("Lightning", Trainer=quiet, LightningModule=Quiet, module=Module(), loader=loader)
    by_hand = quiet(max_epochs=1)
    by_hand.fit(names["Manual"](), loader)
    return [names["trainer"].global_step, by_hand.global_step]


def scaled() -> dict[str, Any]:
    """Training in 16-mixed with a scale under which the first steps overflow; Lightning has that for cards only."""

    def run(kind: type[Module], faults: Faults | None = None, *callbacks: pl.Callback) -> list[torch.Tensor]:
        plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**127))
        module = kind(dropout=0.1).float()
        return [*train(module, faults, *callbacks, plugins=[plugin]), torch.tensor(plugin.scaler.get_scale())]

    def guarded(faults: Faults | None = None) -> list[torch.Tensor]:
        return run(Module, faults, GuardCallback(log=lambda line: None))

    bare = run(Module)
    return {
        "scale": float(bare[-1]),
        "guarded": farthest(bare, guarded()),
        "manual": farthest(run(Manual), run(ManualGuarded)),
        "faults": at_every(173, guarded),
    }


def refused() -> list[str]:
    said = []
    for module, callback, how in (
        (Manual(), GuardCallback(), {}),
        (TakesAnIterator(), GuardCallback(), {}),
        (Module(), GuardCallback(), {"plugins": [OwnStep()]}),
    ):
        try:
            train(module, None, callback, **how)
        except UsageError as error:
            said.append(str(error))
    return said


class TakesAnIterator(Module):
    def training_step(self, dataloader_iter: Any) -> torch.Tensor:
        return self.loss_of(next(dataloader_iter)[0])


class OwnStep(Precision):
    def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().optimizer_step(*args, **kwargs)


def results() -> dict[str, Any]:
    limited, by_hand = Module(3), ManualGuarded(3)
    whole, split = train(Module(), **AUTOMATIC), guarded(limited)
    return {
        "card": on_card(),
        "docs": docs(),
        "scaled": scaled(),
        "refused": refused(),
        "guarded": farthest(train(Module(dropout=0.1), **AUTOMATIC), guarded(Module(dropout=0.1))),
        "skipped": farthest(train(SkipsOne(), **AUTOMATIC), guarded(SkipsOne())),
        "faults": at_every(59, lambda faults: guarded(Module(dropout=0.1), faults)),
        "split parameters": farthest(whole[:-1], split[:-1]),
        "split": farthest(whole, split),
        "parts": limited.limited.seen,
        "manual": farthest(train(Manual(dropout=0.1)), train(ManualGuarded(dropout=0.1))),
        "manual faults": at_every(61, lambda faults: train(ManualGuarded(dropout=0.1), faults)),
        "manual split": farthest(train(Manual()), train(by_hand)),
        "manual parts": by_hand.limited.seen,
    }
