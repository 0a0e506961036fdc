"""What a library's script counts on the emulated card, and compares with sizes that follow from its shapes.

Sizes are bytes, and those that were requested: PyTorch's allocator rounds them, which shapes alone do not tell.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


def requested_bytes(moment: str = "current") -> int:
    """What is asked of PyTorch's allocator now, or was at the peak: the sizes themselves, without any rounding."""
    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{moment}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison: what was counted, and what shapes say."""

    what: str
    counted_bytes: int
    expected_bytes: int


@dataclass(slots=True)
class Counted:
    """The comparisons of one script, and the most that the library took outside of PyTorch's allocator."""

    context_bytes: int
    checks: list[Check] = field(default_factory=list)
    outside_bytes: int = 0

    def look(self) -> int:
        """Count what is outside of PyTorch's allocator now, and keep the most that was; returns bytes."""
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        outside = total_bytes - free_bytes - self.context_bytes - torch.cuda.memory_reserved()
        self.outside_bytes = max(self.outside_bytes, outside)
        return outside

    def equal(self, what: str, counted_bytes: int, expected_bytes: int) -> None:
        """Compare a count with what shapes say."""
        self.checks.append(Check(what=what, counted_bytes=counted_bytes, expected_bytes=expected_bytes))

    @contextmanager
    def grows(self, what: str, expected_bytes: int) -> Iterator[None]:
        """Compare by how much requested memory has grown at the end of the block."""
        gc.collect()  # what is left in cycles must not go meanwhile
        before = requested_bytes()
        yield
        self.equal(what, requested_bytes() - before, expected_bytes)

    @contextmanager
    def peaks(self, what: str, expected_bytes: int) -> Iterator[None]:
        """Compare how far above its beginning requested memory peaked in the block."""
        gc.collect()  # what is left in cycles must not go meanwhile
        before = requested_bytes()
        torch.cuda.reset_peak_memory_stats()
        yield
        self.equal(what, requested_bytes("peak") - before, expected_bytes)
