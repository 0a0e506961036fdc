"""In which order autocast frees its copies of weights, in several processes of one script on the emulated card.

    python -m benchmarks.real_cards.autocast_order [PROCESSES]

PyTorch keeps the copies in a table whose key is the address of each weight's object on the host, and frees them in the
table's order. Everything else that the processes record is equal. Prints how many orders were seen, and what else
differs.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.real_cards.compare import clears_of, events_of, tidied
from benchmarks.real_cards.facts import history_of

_SCRIPT: Final = """
import sys
import ullage
ullage.emulate("T4")
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64 + 8 * (n % 3), device="cuda") for n in range(60)])
torch.cuda.memory._record_memory_history(max_entries=10_000)
with torch.autocast("cuda", dtype=torch.float16), torch.no_grad():
    for layer in model:
        layer(torch.ones(8, 64, device="cuda"))
torch.cuda.memory._dump_snapshot(sys.argv[1])
"""


def main() -> None:
    """Run the processes and say what they have in common."""
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    orders, rest, freed = set(), set(), 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(processes):
            path = Path(folder) / f"{number}.pickle"
            subprocess.run([sys.executable, "-c", _SCRIPT, str(path)], check=True)
            history = history_of(path)
            events, clears = events_of(history), clears_of(history)
            freed = sum(clears) // 2
            orders.add(tuple(event for event, is_clear in zip(events, clears, strict=True) if is_clear))
            rest.add(tuple(tidied(events, clears)))
    print(f"{processes} processes, {freed} copies freed by autocast in each: {len(orders)} orders")
    print(f"recordings that differ in anything else: {len(rest) - 1}")


if __name__ == "__main__":
    main()
