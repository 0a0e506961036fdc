"""More than ten pinned allocations of all sizes, by the script and by a DataLoader, some of them given back."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.cuda.init()
    sizes = (1, 100, 4096, 5000, 1_000_000, 3 << 20, (1 << 20) + 1, 7_777_777)
    kept = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in sizes]
    kept.append(torch.zeros(123, 45, 67, pin_memory=True))
    kept.append(torch.randn(1000, 777).pin_memory())
    let_go = [torch.ones(3_000_001).pin_memory() for _ in range(3)]
    del let_go
    kept.append(torch.empty(2_500_000).pin_memory())  # in the place of one of those
    model = torch.nn.Linear(300, 300).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(3000, 300)), batch_size=1000, pin_memory=True, num_workers=1)
    for (batch,) in loader:
        model(batch.cuda(non_blocking=True)).sum().backward()
        optimizer.step()
    stats = torch.cuda.host_memory_stats()
    print("pinned", stats["allocated_bytes.peak"], stats["num_host_alloc"], flush=True)


main()
