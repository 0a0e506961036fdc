"""What frameworks hold: DistributedDataParallel, FSDP, Accelerate, Transformers, Lightning."""

import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.training.ownership.scenarios.made import inputs, loss_of, net, tensor
from tests.training.ownership.scenarios.scenario import End, scenario


def _alone() -> None:
    """Make a group of one rank."""
    warnings.simplefilter("ignore")  # about devices that are guessed
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda:0"))


def _train(model: nn.Module, optimizer: Any) -> Tensor:
    """Take two steps, and return the last loss."""
    for _ in range(2):
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
    return loss


@scenario("the buckets of a DistributedDataParallel", holder=".reducer", kind="gradient", mib=8)
def parallel(end: End) -> None:
    _alone()
    model = nn.parallel.DistributedDataParallel(net(), device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters())
    loss = _train(model, optimizer)
    end(model, optimizer, loss)


@scenario("gradients that are views of buckets", holder="'model'", kind="gradient", mib=8)
def parallel_views(end: End) -> None:
    _alone()
    model = nn.parallel.DistributedDataParallel(net(), device_ids=[0], gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    loss = _train(model, optimizer)
    end(model, optimizer, loss)


@scenario("a ZeroRedundancyOptimizer, which has another inside", holder="'optimizer'", kind="optimizer state", mib=16)
def zero(end: End) -> None:
    _alone()
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = net()
    optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
    _train(model, optimizer)
    end(model, optimizer)


@scenario("FSDP's flat parameters and their gradients", holder="'model'", kind="gradient", mib=8)
def flat(end: End) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    _alone()
    model = FullyShardedDataParallel(net(), device_id=0, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    loss = _train(model, optimizer)
    end(model, optimizer, loss)


@scenario("FSDP2's DTensors", holder="'optimizer'", kind="optimizer state", mib=16)
def sharded(end: End) -> None:
    from torch.distributed.fsdp import fully_shard

    _alone()
    model = net()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    loss = _train(model, optimizer)
    end(model, optimizer, loss)


@scenario(
    "Accelerate's optimizer around another", holder="'optimizer'", kind="optimizer state", mib=16, needs="accelerate"
)
def accelerated(end: End) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16")
    model = net()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    loss = model(inputs()).mean()
    accelerator.backward(loss)
    optimizer.step()
    end(model, optimizer, loss)


@scenario("Transformers' Trainer", holder="'trainer'", kind="optimizer state", mib=6, needs="transformers", slow=True)
def transformers_trainer(end: End) -> None:
    warnings.simplefilter("ignore")
    import transformers

    class Keep(transformers.TrainerCallback):  # type: ignore[misc]
        kept: Any = None

        def on_step_end(self, *_: Any, model: Any = None, **__: Any) -> None:
            self.kept = [parameter.detach().clone() for parameter in model.parameters()]

    sizes = {"n_layer": 1, "n_embd": 256, "n_head": 4, "vocab_size": 512, "n_positions": 64}
    example = dict.fromkeys(("input_ids", "labels"), torch.zeros(32, dtype=torch.long))
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=2, report_to=[], save_strategy="no", disable_tqdm=True
        )
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
        trainer = transformers.Trainer(model, arguments, train_dataset=[example] * 8, callbacks=[Keep()])
        trainer.train()
    del model
    end(trainer)


@scenario("Lightning's Trainer, whose callback keeps outputs", holder="'trainer'", mib=4, needs="lightning", slow=True)
def lightning_trainer(end: End) -> None:
    warnings.simplefilter("ignore")
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(1024, 1024)

        def training_step(self, batch: Any, _: int) -> Any:
            return {"loss": self.net(batch[0]).mean(), "scores": tensor()}

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    class Keep(lightning.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.kept: list[Any] = []

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
            self.kept.append(outputs)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_steps=2, accelerator="gpu", devices=1, callbacks=[Keep()], **quiet)
    trainer.fit(Module(), DataLoader(TensorDataset(torch.zeros(8, 1024)), 4))
    end(trainer)
