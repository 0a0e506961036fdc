"""Random convolutions on an emulated card, forward and backward; print what was raised and what was planned.

    python -m tests.gpu.emulator.cudnn.random_convolutions T4 SEED COUNT plain          (or: benchmark)

The same seed is the same problems, on every card and in both modes.
"""

import json
import random
import sys
import traceback
from dataclasses import asdict, dataclass
from typing import Any

import ullage
from ullage.gpu.emulator import library

TYPES = ("float32", "float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True, slots=True)
class Problem:
    """One layer and what it is given."""

    dims: int
    batch: int
    inputs: int
    outputs: int
    groups: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int
    padding: int
    dilation: int
    type: str
    is_transposed: bool
    is_channels_last: bool
    has_bias: bool
    takes_tf32: bool
    is_deterministic: bool


def draw(chance: random.Random) -> Problem:
    """Draw a problem that a user could have; its largest tensor has at most 64 Mi elements."""
    dims = chance.choice((1, 2, 2, 2, 3))
    groups = chance.choice((1, 1, 1, 2, 4))
    inputs = groups * chance.choice((1, 3, 8, 16, 33, 64, 128))
    outputs = groups * chance.choice((1, 4, 16, 31, 64, 128))
    if chance.random() < 0.15:  # depthwise
        groups = inputs
        outputs = inputs * chance.choice((1, 2))
    dilation = chance.choice((1, 1, 1, 2, 3))
    kernel = tuple(chance.choice((1, 2, 3, 3, 5, 7)) for _ in range(dims))
    least = max(dilation * (length - 1) + 1 for length in kernel)
    most = {1: 4096, 2: 112, 3: 28}[dims]
    size = tuple(chance.randint(least, max(least, most)) for _ in range(dims))
    return Problem(
        dims=dims,
        batch=chance.choice((1, 2, 3, 8, 32)),
        inputs=inputs,
        outputs=outputs,
        groups=groups,
        size=size,
        kernel=kernel,
        stride=chance.choice((1, 1, 2, 3)),
        padding=chance.choice((0, 1, 1, 2, 3)),
        dilation=dilation,
        type=chance.choice(TYPES),
        is_transposed=chance.random() < 0.25,
        is_channels_last=chance.random() < 0.4,
        has_bias=chance.random() < 0.5,
        takes_tf32=chance.random() < 0.7,
        is_deterministic=chance.random() < 0.2,
    )


def run(problem: Problem) -> None:
    """Run one, forward and backward."""
    import torch

    cudnn = torch.backends.cudnn
    cudnn.allow_tf32, cudnn.deterministic = problem.takes_tf32, problem.is_deterministic
    name = f"Conv{'Transpose' if problem.is_transposed else ''}{problem.dims}d"
    layer = getattr(torch.nn, name)(
        problem.inputs,
        problem.outputs,
        problem.kernel,
        stride=problem.stride,
        padding=0 if problem.is_transposed else problem.padding,
        dilation=problem.dilation,
        groups=problem.groups,
        bias=problem.has_bias,
        device="cuda",
        dtype=getattr(torch, problem.type),
    )
    x = torch.empty(problem.batch, problem.inputs, *problem.size, device="cuda", dtype=getattr(torch, problem.type))
    if problem.is_channels_last and problem.dims > 1:
        x = x.to(memory_format=torch.channels_last if problem.dims == 2 else torch.channels_last_3d)
    layer(x.requires_grad_()).sum().backward()


def main(gpu: str, seed: str, count: str, mode: str) -> None:
    """Run, and print what came of it."""
    ullage.emulate(gpu)
    import torch

    torch.backends.cudnn.benchmark = mode == "benchmark"
    chance = random.Random(int(seed))
    raised: list[Any] = []
    for _ in range(int(count)):
        problem = draw(chance)
        try:
            run(problem)
        except Exception:
            raised.append([asdict(problem), traceback.format_exc()[-800:]])
    told = library.cudnn_plans()
    answered = {
        f"{found.problem:x}": [found.source, found.low_bytes, found.workspace_bytes, found.high_bytes]
        for found in library.cudnn_problems()
    }
    json.dump({"raised": raised, "problems": answered, "reasons": told.reasons}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
