"""What a run of many ranks does at its start: a mesh of two dimensions, objects gathered, DDP's check of parameters.

Timeouts are set of all groups, as torchtitan does after the first step; one of its axes of size 1 has a fake group.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # knows the backend "fake"

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
size = int(os.environ["WORLD_SIZE"])
dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
mesh = init_device_mesh("cuda", (size // 4, 4), mesh_dim_names=("data", "model"))
assert mesh["model"].size() == dist.get_world_size(mesh.get_group("model")) == 4
for group in (dist.new_group(backend="fake"), dist.new_group(backend="gloo"), None):
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=100), group)
mine = torch.tensor([7], device="cuda")
near, guard = torch.empty(4, device="cuda", dtype=torch.long), torch.tensor([5, 5, 5], device="cuda")
dist.all_gather_into_tensor(near, mine, group=mesh.get_group("model"))
assert near.tolist() == [7, 7, 7, 7], near
assert guard.tolist() == [5, 5, 5], guard
names: list = [None] * size
dist.all_gather_object(names, {"rank": dist.get_rank()})
assert all(name is not None for name in names)
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.ones(2, 64, device="cuda")).sum().backward()
    optimizer.step()
