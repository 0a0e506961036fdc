"""One process of a data-parallel run, for torchrun."""

import os

import torch
import torch.distributed as distributed
from torch import nn

distributed.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
sent = torch.tensor([7]).cuda()
gathered = [torch.empty_like(sent) for _ in range(2)]
distributed.all_gather(gathered, sent)
together = torch.empty(2, dtype=sent.dtype, device="cuda")
distributed.all_gather_into_tensor(together, sent)
assert [tensor.item() for tensor in gathered] == together.tolist() == [7, 7], (gathered, together)
said = f"rank {rank} {torch.cuda.get_device_name()} {torch.cuda.max_memory_allocated(rank) > 0}\n"
os.write(1, said.encode())  # in one piece: two processes write to one place
distributed.destroy_process_group()
