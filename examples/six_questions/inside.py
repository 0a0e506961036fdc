"""In the training process: steps that survive, who holds memory, all of it back, and what leaks."""

import ullage

ullage.emulate("T4")  # leave this out where there is a card

import torch  # noqa: E402  the card has to be there first

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
