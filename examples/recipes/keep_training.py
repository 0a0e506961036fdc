"""In the training process: continue after out-of-memory errors, find leaks, list owners, and free everything."""

import ullage

ullage.emulate("T4")  # leave this out on a machine with a GPU

import torch

model = torch.nn.Linear(4096, 4096, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
guard = ullage.Guard(model, optimizer)
monitor = ullage.Monitor()
kept = []
for _ in range(4):
    batch = torch.ones(64, 4096, device="cuda")
    kept.append(guard.step(batch, lambda batch: model(batch).square().mean()))
    monitor.step()

print(ullage.owners())
print(ullage.release(model, optimizer, kept, guard, monitor, batch))
print(torch.cuda.memory_allocated())
