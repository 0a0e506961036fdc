"""What the runs of all frameworks need: faults wherever a guard is at work, a limit on items, and what a run leaves."""

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests.training.guard.faults import TEXT, Faults
from ullage.training.guard.guard import Guard


@contextmanager
def faults_in_guard(faults: Faults) -> Iterator[None]:
    """Have operations counted, and fail, in every step and update of a guard, and nowhere else."""
    inside = False

    def exposed(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:
                return method(*args, **kwargs)
            inside = True
            try:
                with faults:
                    return method(*args, **kwargs)
            finally:
                inside = False

        return run

    with patch.object(Guard, "step", exposed(Guard.step)), patch.object(Guard, "update", exposed(Guard.update)):
        yield


def run_the_docs(section: str, **names: Any) -> dict[str, Any]:
    """Run the Python of a section of docs/integrations.md, where these names are known."""
    page = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()
    text = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for block in blocks:
        exec(block, names)
    return names | {"blocks": len(blocks)}


@cache
def _seen_by(module: nn.Module) -> list[int]:
    """Return a list of a module's own: a guard does not look into caches of functions."""
    return []


class AtMost(nn.Module):
    """Passes its input on, and has no memory for more than so many items."""

    def __init__(self, items: int | None) -> None:
        super().__init__()
        self.items = items

    @property
    def seen(self) -> list[int]:
        """How many items it was given each time: kept elsewhere, because a guard takes no notes of a model's apart."""
        return _seen_by(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.items is not None and len(x) > self.items:
            raise torch.OutOfMemoryError(TEXT)
        self.seen.append(len(x))
        return x


def farthest(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    """Return the largest difference between two runs' parameters."""
    assert len(one) == len(other)
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def at_every(stride: int, run: Callable[[Faults], Sequence[torch.Tensor]]) -> dict[str, Any]:
    """Run without faults, and then with one at every so-and-so-many-th operation."""
    counting = Faults()
    expected = run(counting)
    differences, raised = [], 0
    for point in range(0, counting.count, stride):
        faults = Faults({point})
        differences.append(farthest(expected, run(faults)))
        raised += faults.raised
    return {"operations": counting.count, "runs": len(differences), "raised": raised, "farthest": max(differences)}


def on_a_small_card(bytes_free: int, bare: Callable[[], Any], guarded: Callable[[], Any]) -> dict[str, Any]:
    """Run where PyTorch's allocator has only so many bytes: without a guard that ends with its error."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(bytes_free / total)
    error = None
    try:
        bare()
    except torch.OutOfMemoryError as failure:
        error = str(failure)
    gc.collect()
    torch.cuda.empty_cache()
    return {"bare": error, "guarded": guarded()}
