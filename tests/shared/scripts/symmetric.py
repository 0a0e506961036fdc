"""A linear layer whose all-gather and reduce-scatter overlap with its products, by buffers that ranks share."""

import os

import torch
import torch.distributed as distributed
from torch.distributed._symmetric_memory import enable_symm_mem_for_group

distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
group = distributed.distributed_c10d._get_default_group().group_name
enable_symm_mem_for_group(group)
into = torch.nn.Parameter(torch.randn(512, 1024, device="cuda"))
back = torch.randn(1024, 512, device="cuda")
optimizer = torch.optim.SGD([into])
for _ in range(3):
    shard = torch.randn(2048, 512, device="cuda")
    _, (wide,) = torch.ops.symm_mem.fused_all_gather_matmul(shard, [into.detach()], 0, group)
    part = torch.ops.symm_mem.fused_matmul_reduce_scatter(wide, back, "sum", 0, group)
    into.grad = into.detach().clone()
    print(tuple(wide.shape), tuple(part.shape))
    del wide, part
    optimizer.step()
