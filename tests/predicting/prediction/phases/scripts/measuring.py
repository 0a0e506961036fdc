"""What a script can measure of its own phases with PyTorch's peak statistics; it knows nothing of ullage."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

FIGURES: dict[str, list[int]] = {}


@contextmanager
def measured(name: str) -> Iterator[None]:
    """Keep the highest of what PyTorch says of each span of a phase: allocated, reserved."""
    torch.cuda.reset_peak_memory_stats()
    try:
        yield
    finally:
        keep(name)


def keep(name: str) -> None:
    """Keep the peaks since the last reset, and reset them."""
    now = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
    FIGURES[name] = [max(pair) for pair in zip(FIGURES.get(name, [0, 0]), now, strict=True)]
    Path("figures.json").write_text(json.dumps(FIGURES))
    torch.cuda.reset_peak_memory_stats()
