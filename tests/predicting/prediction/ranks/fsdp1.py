"""FSDP1 with its parameters as they are written: each rank has a part of some, and the states of its own alone.

To gather the optimizer's state, ranks tell each other which they have.
"""

import torch
from common import Block, begin, train
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

begin()
blocks = nn.Sequential(*(Block(320) for _ in range(3)))
model = FullyShardedDataParallel(
    blocks,
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    device_id=torch.cuda.current_device(),
    use_orig_params=True,
)
optimizer = torch.optim.AdamW(model.parameters())


def step(number: int) -> None:
    """Train, and gather the optimizer's state as where it is saved."""
    model(torch.randn(4, 128, 320, device="cuda")).square().mean().backward()
    if number == 1:
        FullyShardedDataParallel.optim_state_dict(model, optimizer)


train(step, optimizer)
