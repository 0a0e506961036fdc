"""Pipeline stages that learn their shapes from each other: `pipeline.py SCHEDULE [data | tensor | context]`.

Behind the schedule stands what each stage is shared out by besides, among two ranks.
"""

import sys
from contextlib import nullcontext

import torch
from common import Block, begin, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel

VOCABULARY, WIDTH, LENGTH, BATCH, MICRO_BATCHES = 1000, 128, 64, 8, 4
name, product = sys.argv[1], (sys.argv[2] if len(sys.argv) > 2 else "")
rank, size = begin()
others = 2 if product else 1
mesh = init_device_mesh("cuda", (others, size // others), mesh_dim_names=("other", "pipeline"))
mine, stages_across = mesh.get_local_rank("pipeline"), size // others
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
    if product == "tensor":
        for layer in layers:
            parallelize_module(layer, mesh["other"], tensor_plan(layer))
    part = nn.Sequential(*layers).cuda()
    return part.bfloat16() if product == "context" else part


def tensor_plan(layer: nn.Module) -> dict[str, ParallelStyle] | ParallelStyle:
    """Return how a layer is cut: of a block the feed-forward layers, and the embedding and the head whole."""
    if isinstance(layer, Block):
        return {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if isinstance(layer, nn.Embedding):
        return RowwiseParallel(input_layouts=Replicate())
    return ColwiseParallel(output_layouts=Replicate())


def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean over tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


parts = [part_of(number) for number in numbers]
if product == "data":
    for part in parts:
        fully_shard(part, mesh=mesh["other"])
device, group = torch.device("cuda", torch.cuda.current_device()), mesh.get_group("pipeline")
stages = [PipelineStage(part, number, count, device, group=group) for part, number in zip(parts, numbers, strict=True)]
schedule = kind(stages if is_multi else stages[0], MICRO_BATCHES, loss_fn=loss)
parameters = [each for part in parts for each in part.parameters()]
optimizer = torch.optim.AdamW(parameters, foreach=product != "tensor")  # some of them are cut, and some are not


def step(number: int) -> None:
    """Run every micro-batch; where sequences are cut, attention goes in a ring."""
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH)).cuda()
    cut = product == "context"
    ring = context_parallel(mesh["other"], buffers=[tokens], buffer_seq_dims=[1]) if cut else nullcontext()
    with ring, sdpa_kernel([SDPBackend.FLASH_ATTENTION]) if cut else nullcontext():
        target = {"target": tokens} if count - 1 in numbers else {}
        schedule.step(*([tokens] if 0 in numbers else []), **target)


train(step, optimizer)
