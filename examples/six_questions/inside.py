"""In the training process: survive out-of-memory errors, list what holds memory, free it, and find leaks."""

import ullage

ullage.emulate("T4")  # leave this out on a machine with a GPU

import torch  # noqa: E402  the GPU has to be emulated first

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
