"""Pipeline stages that learn their shapes from each other: `pipeline.py SCHEDULE [data]`."""

import sys

import torch
from common import Block, begin, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules

VOCABULARY, WIDTH, LENGTH, BATCH, MICRO_BATCHES = 1000, 128, 64, 8, 4
name, products = sys.argv[1], sys.argv[2:]
rank, size = begin()
data = 2 if "data" in products else 1
mesh = init_device_mesh("cuda", (data, size // data), mesh_dim_names=("data", "pipeline"))
mine, stages_across = mesh.get_local_rank("pipeline"), size // data
kind = getattr(schedules, "Schedule" + name)
is_multi = issubclass(kind, schedules.PipelineScheduleMulti)
here = 2 if is_multi else 1
count = stages_across * here
is_v = name in ("ZBVZeroBubble", "DualPipeV")
numbers = [mine, count - 1 - mine] if is_v else [mine + part * stages_across for part in range(here)]


def part_of(number: int) -> nn.Module:
    """Return the layers of a stage; the first embeds, the last has one more layer and the head."""
    layers: list[nn.Module] = [Block(WIDTH)]
    if number == 0:
        layers.insert(0, nn.Embedding(VOCABULARY, WIDTH))
    if number == count - 1:
        layers += [Block(WIDTH), nn.Linear(WIDTH, VOCABULARY)]
    return nn.Sequential(*layers).cuda()


def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean over tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


parts = [part_of(number) for number in numbers]
if data > 1:
    for part in parts:
        fully_shard(part, mesh=mesh["data"])
device, group = torch.device("cuda", torch.cuda.current_device()), mesh.get_group("pipeline")
stages = [PipelineStage(part, number, count, device, group=group) for part, number in zip(parts, numbers, strict=True)]
schedule = kind(stages if is_multi else stages[0], MICRO_BATCHES, loss_fn=loss)
optimizer = torch.optim.AdamW([each for part in parts for each in part.parameters()])


def step(number: int) -> None:
    """Run every micro-batch."""
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH)).cuda()
    target = {"target": tokens} if count - 1 in numbers else {}
    schedule.step(*([tokens] if 0 in numbers else []), **target)


train(step, optimizer)
