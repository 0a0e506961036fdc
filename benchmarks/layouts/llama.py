"""A Llama-like model in any layout of data, tensor, pipeline and context parallelism: plain PyTorch.

torchrun --nproc-per-node 8 benchmarks/layouts/llama.py --size 7b --dp 2 --tp 2 --pp 2
ullage fit benchmarks/layouts/llama.py --gpu H100 --cards 64 --layout "dp*tp*pp*cp" \
    --layout-option dp=--dp --layout-option tp=--tp --layout-option pp=--pp --layout-option cp=--cp --size 7b
"""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

VOCABULARY = 32000
SIZES = {  # width, feed-forward width, layers, heads
    "tiny": (256, 688, 4, 4),
    "7b": (4096, 11008, 32, 32),
    "70b": (8192, 28672, 80, 64),
}


class Block(nn.Module):
    """Attention and a gated feed-forward network, with root-mean-square norms."""

    def __init__(self, width: int, hidden: int, heads: int, *, is_mlp_checkpointed: bool) -> None:
        super().__init__()
        self.is_mlp_checkpointed = is_mlp_checkpointed
        self.size_of_head = width // heads
        self.attention_norm = nn.RMSNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.project = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        q, k, v = (
            part(normed).unflatten(-1, (-1, self.size_of_head)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(-2))
        return x + (checkpoint(self.mlp, x, use_reentrant=False) if self.is_mlp_checkpointed else self.mlp(x))

    def mlp(self, x: Tensor) -> Tensor:
        normed = self.mlp_norm(x)
        return self.down(F.silu(self.gate(normed)) * self.up(normed))


class Part(nn.Module):
    """The layers of one pipeline stage: the first has the embedding, the last the norm and the head."""

    def __init__(self, stage: int, stages: int, size: tuple[int, int, int, int], checkpointed: str) -> None:
        super().__init__()
        width, hidden, layers, heads = size
        if stages > layers:
            raise ValueError(f"{layers} layers cannot be cut into {stages} stages")
        mine = range(stage * layers // stages, (stage + 1) * layers // stages)
        self.is_checkpointed = checkpointed == "full"
        self.tokens = nn.Embedding(VOCABULARY, width) if stage == 0 else None
        self.blocks = nn.ModuleList(
            Block(width, hidden, heads, is_mlp_checkpointed=checkpointed == "mlp") for _ in mine
        )
        self.norm = nn.RMSNorm(width) if stage == stages - 1 else None
        self.head = nn.Linear(width, VOCABULARY, bias=False) if stage == stages - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        if self.tokens is not None:
            x = self.tokens(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


def cut(part: Part, mesh: DeviceMesh) -> None:
    """Cut the layers of a part for tensor parallelism."""
    plan = {name: ColwiseParallel() for name in ("q", "k", "v", "gate", "up")}
    for block in part.blocks:
        parallelize_module(block, mesh, plan | {name: RowwiseParallel() for name in ("project", "down")})
    whole = {"tokens": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(output_layouts=Replicate())}
    parallelize_module(part, mesh, {name: way for name, way in whole.items() if getattr(part, name) is not None})


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def build(options: argparse.Namespace, mesh: DeviceMesh) -> Part:
    """Make this rank's part of the model, cut and sharded."""
    size = SIZES[options.size]
    if size[3] % options.tp:
        raise ValueError(f"{size[3]} heads cannot be shared out among {options.tp} ranks")
    with torch.device("meta"):
        part = Part(mesh.get_local_rank("pp"), options.pp, size, options.checkpoint)
    if options.tp > 1:
        cut(part, mesh["tp"])
    sharded = mesh["dp", "cp"]._flatten("dp_cp")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in [*part.blocks, part]:
        fully_shard(block, mesh=sharded, mp_policy=policy, reshard_after_forward=options.zero == 3)
    part.to_empty(device="cuda")
    for parameter in part.parameters():
        nn.init.normal_(parameter, std=0.02)
    return part


def staged(options: argparse.Namespace, mesh: DeviceMesh, part: Part) -> Schedule1F1B:
    """Return the schedule of the pipeline; shapes are told, so that no stage waits for another's.

    From torch 2.14 on, what is told to need no gradient is sent none back.
    """
    stage = mesh.get_local_rank("pp")
    length, width = options.length // options.cp, SIZES[options.size][0]
    tokens = torch.empty(options.micro_batch, length, dtype=torch.long, device="meta")
    floats = {"dtype": torch.bfloat16, "device": "meta", "requires_grad": True}
    between = torch.empty(options.micro_batch, length, width, **floats)
    logits = torch.empty(options.micro_batch, length, VOCABULARY, **floats)
    placed = PipelineStage(
        part,
        stage,
        options.pp,
        torch.device("cuda", torch.cuda.current_device()),
        input_args=(tokens if stage == 0 else between,),
        output_args=(logits if stage == options.pp - 1 else between,),
        group=mesh.get_group("pp"),
    )
    return Schedule1F1B(placed, options.micro_batches, loss_fn=loss_of)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    for axis in ("dp", "tp", "pp", "cp"):
        parser.add_argument(f"--{axis}", type=int, default=1)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--zero", type=int, choices=(2, 3), help="3 where there is no pipeline, else 2")
    parser.add_argument("--checkpoint", choices=("none", "mlp", "full"), default="none")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    options.zero = options.zero or (3 if options.pp == 1 else 2)

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    sizes = (options.pp, options.dp, options.cp, options.tp)
    mesh = init_device_mesh("cuda", sizes, mesh_dim_names=("pp", "dp", "cp", "tp"))
    part = build(options, mesh)
    optimizer = torch.optim.AdamW(part.parameters(), lr=3e-4)
    schedule = staged(options, mesh, part) if options.pp > 1 else None
    stage = mesh.get_local_rank("pp")
    for _ in range(options.steps):
        items = options.micro_batch * (options.micro_batches if schedule else 1)
        tokens = torch.randint(0, VOCABULARY, (items, options.length + 1), device="cuda")
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        ring = context_parallel(mesh["cp"], buffers=[inputs, targets], buffer_seq_dims=[1, 1])
        kernel = sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION])
        with ring if options.cp > 1 else nullcontext(), kernel:
            if schedule is not None:
                target = {"target": targets} if stage == options.pp - 1 else {}
                schedule.step(*([inputs] if stage == 0 else []), **target)
            else:
                for _ in range(options.micro_batches):
                    loss_of(part(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
