"""DeepSpeed: a step of its FusedAdam, compiled by nvcc when it is first used."""

import torch
from counted import Counted
from deepspeed.ops.adam import FusedAdam

WIDTH = 4096


def run(counted: Counted) -> None:
    layer = torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda")
    optimizer = FusedAdam(layer.parameters(), lr=1e-3)
    layer(torch.randn(64, WIDTH, device="cuda")).pow(2).mean().backward()
    optimizer.step()
    moments = sum(state.nbytes for state in optimizer.state[layer.weight].values() if isinstance(state, torch.Tensor))
    counted.equal("two moments", moments, 2 * 4 * WIDTH * WIDTH)
