"""Train for some steps and keep what the first argument says; with a second one, say how memory grew.

The second argument is a file for PyTorch's snapshot. With it the history is recorded, a monitor watches, and the last
line is what the monitor has found, as JSON. Without it the script is one that anybody might have written.
"""

import contextlib
import json
import random
import sys

import torch
from torch import nn

STEPS = 120
HOW, SNAPSHOT = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
ITEMS = 512
"""The items of a batch and of what is kept: 2 MiB."""

monitor = None
if SNAPSHOT:
    import ullage

    torch.cuda.memory._record_memory_history(stacks="python", max_entries=1_000_000)
    monitor = ullage.Monitor(holders=False)
chance = random.Random(7)
model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept = []


def evaluate() -> None:
    with monitor.phase("eval") if monitor else contextlib.nullcontext(), torch.no_grad():
        for _ in range(4):
            out = model(torch.randn(ITEMS, 1024, device="cuda"))
            if HOW == "in evaluations":
                kept.append(out)  # keeps
            if monitor:
                monitor.step()


for step in range(1, STEPS + 1):
    items = chance.randrange(16, 4 * ITEMS) if HOW in ("varying lengths", "among varying lengths") else ITEMS
    batch = torch.randn(items, 1024, device="cuda")
    loss = model(batch).square().mean()
    loss.backward()
    match HOW:
        case "every step" | "among varying lengths":
            keeps = True
        case "every sixth step":
            keeps = step % 6 == 3
        case "begun late":
            keeps = step > 50
        case "a cache that is full":
            keeps = step <= 20
        case "a cache that fills ever more slowly":
            keeps = step in (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 21, 27, 35, 46, 60, 78, 101)
        case "warm-up":
            keeps = step in (2, 3, 5, 8)
        case "cleared again and again":
            keeps = True
            if step % 16 == 0:
                kept.clear()
        case _:
            keeps = False
    if keeps:
        kept.append(torch.zeros(ITEMS, 1024, device="cuda"))  # keeps
    optimizer.step()
    optimizer.zero_grad()
    if monitor:
        monitor.step()
    if step % 10 == 0:
        evaluate()
if SNAPSHOT:
    torch.cuda.memory._dump_snapshot(SNAPSHOT)
    leaks = [finding for finding in monitor.findings if finding.is_leak]
    print(json.dumps({"lines": [leak.line for leak in leaks], "text": str(monitor)}))
