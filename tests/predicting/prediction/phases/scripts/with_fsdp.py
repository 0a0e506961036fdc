"""A rank of FSDP2 that saves, measured by the script: `with_fsdp.py gathered|module|sharded`."""

import sys

import torch
import torch.distributed as distributed
from measuring import keep, measured
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

WAY = sys.argv[1]


def save(model: nn.Module) -> None:
    if WAY == "gathered":
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    elif WAY == "module":
        state = {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}
    else:
        state = {name: tensor.to_local() for name, tensor in model.state_dict().items()}
    torch.save(state, "checkpoint.pt")


distributed.init_process_group("nccl")
torch.cuda.set_device(distributed.get_rank())
model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4))).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    batch = torch.randn(64, 1024, device="cuda")
    if not step:
        keep("loading")
    model(batch).square().mean().backward()
    optimizer.step()
    keep("steady step" if step else "first step")
    optimizer.zero_grad()
    if step in (1, 3):
        with measured("saving"):
            save(model)
