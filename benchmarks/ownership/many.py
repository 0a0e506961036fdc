"""How long `ullage.owners` takes with 10^5 tensors alive, on the emulated card. `make bench`. Exits 1 past a bound.

Beside it the floor: how long PyTorch's own snapshot of the same blocks takes, without which no answer is to the byte.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ullage

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from figure import Measured

TENSORS, TIMES = 100_000, 5
BOUND_SECONDS = 2.0


def seconds_of(work: Callable[[], Any]) -> float:
    """Return the median processor seconds of some work."""
    found = []
    for _ in range(TIMES):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return statistics.median(found)


def main() -> None:
    """Print the figures."""
    ullage.emulate("H100")
    import torch

    kept = [torch.empty(1, device="cuda") for _ in range(TENSORS)]
    assert ullage.owners(0).total_bytes == torch.cuda.memory_allocated()
    figures = [
        Measured(f"ullage.owners() with {len(kept):,} tensors alive", seconds_of(ullage.owners), "s", BOUND_SECONDS),
        Measured("of that at least: torch.cuda.memory_snapshot()", seconds_of(torch.cuda.memory_snapshot), "s"),
    ]
    print(*figures, sep="\n")
    sys.exit(0 if all(figure.kept for figure in figures) else 1)


if __name__ == "__main__":
    main()
