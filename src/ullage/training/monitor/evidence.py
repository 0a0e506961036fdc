"""Finds the source lines whose allocated memory grows from step to step, and the variable that holds this memory.

PyTorch records allocation stacks only during the search. Backward allocates in threads without Python frames, so it may
be moved to the calling thread for a while.
"""

import re
from collections import Counter
from itertools import pairwise
from typing import Any, Final

import torch

from ullage.base.errors import UsageError
from ullage.base.growth import LEAST_RISES, even_share, is_even
from ullage.training.ownership.block import line_of, segments

NEEDED_SAMPLES: Final = LEAST_RISES + 1
"""The number of samples that the monitor needs before it reports which source line causes the growth."""
UNIT_BYTES: Final = 512
"""The unit of block sizes in PyTorch's allocator, in bytes. Every block size is a multiple of it."""
_MAX_SAMPLES: Final = 16
# The N in this rule: a finding names a source line only if the line's memory grows by at least 1/N of the growth of the
# fastest line.
_NAMED_ONE_IN: Final = 10
_LEAST_HELD_BYTES: Final = 1 << 10
_PLACE: Final = re.compile(r"\[\d+\]")
# A regular expression for a repeated part of a path. Paths can become longer as a leak grows, for example if each
# exception refers to the previous one.
_REPEATED_PART: Final = re.compile(r"(\[\*\]| -> [^ ]+)\1{2,}")

HeldByPath = dict[str, tuple[int, int]]
"""The number of blocks and bytes that each object holds. The keys are paths from a variable to the object.

A star in a path replaces an index.
"""
# A sample of the live blocks: the step, and a mapping from each source line to the bytes and the number of its live
# blocks.
_Sample = tuple[int, dict[str | None, tuple[int, int]]]


class GrowthEvidence:
    """Samples the allocated blocks of a device every few steps, grouped by the source line that allocated them."""

    def __init__(self, device: int, stride: int) -> None:
        self._device = device
        self._stride = stride
        self._due = 0
        self._samples: list[_Sample] = []
        self._single_thread: Any = None
        self._records = False
        self.is_possible = torch.cuda.get_allocator_backend() == "native"

    def start(self, step: int) -> None:
        """Make PyTorch record the stack of each allocation from now on.

        Args:
            step: the number of steps so far.
        """
        if self.is_possible and not torch._C._cuda_isHistoryEnabled():
            torch.cuda.memory._record_memory_history("state", context="alloc", stacks="python", max_entries=1)
            self._records = True
        # Blocks that every step replaces, such as gradients, have a recorded stack only after one more step.
        self._due = step + 2

    def stop(self) -> None:
        """Restore PyTorch's settings for allocation stacks."""
        if self._records:
            self._records = False
            torch.cuda.memory._record_memory_history(None)
        if self._single_thread is not None:
            self._single_thread.__exit__(None, None, None)
            self._single_thread = None

    def sample(self, step: int) -> None:
        """Take a sample of the allocated blocks, if one is due at this step."""
        if step < self._due or not self.is_possible:
            return
        self._due = step + self._stride
        if len(self._samples) == _MAX_SAMPLES:
            del self._samples[1]
        self._samples.append((step, self._by_line()))
        if self._single_thread is None and len(self._samples) >= 2 and self._has_unplaced_growth():
            self._single_thread = torch.autograd.set_multithreading_enabled(False)

    @property
    def is_complete(self) -> bool:
        """Whether there are enough samples to name the source lines whose memory grows."""
        return len(self._samples) >= NEEDED_SAMPLES or not self.is_possible

    def lines(self, *, by_blocks: bool) -> tuple[tuple[str, int], ...]:
        """Return the source lines whose memory grows, with the growth in bytes per step, the fastest first.

        Lines with a rising number of blocks are preferred, because longer batches also raise the number of bytes.

        Args:
            by_blocks: whether the total number of blocks rises. If it does not, the new blocks of a line may only
                replace blocks that were allocated before recording started.
        """
        if len(self._samples) < NEEDED_SAMPLES:
            return ()
        for is_rising in (_rises_in_blocks, _rises_in_bytes):
            found = {}
            for line in self._samples[-1][1]:
                known = self._known(line) if line is not None else []
                if known and not by_blocks:
                    unplaced = [sample.get(None, (0, 0)) for _, sample in self._samples[-len(known) :]]
                    known = [
                        (step, size + other, n + others)
                        for (step, size, n), (other, others) in zip(known, unplaced, strict=True)
                    ]
                if len(known) >= NEEDED_SAMPLES - 1 and is_rising([(size, count) for _, size, count in known]):
                    found[str(line)] = (known[-1][1] - known[0][1]) // max(1, known[-1][0] - known[0][0])
            least = max(1, max(found.values(), default=0) // _NAMED_ONE_IN)
            if any(rate > 0 for rate in found.values()):
                rows = sorted(found.items(), key=lambda row: -row[1])
                return tuple((line, rate) for line, rate in rows if rate >= least)
        return ()

    def _known(self, line: str) -> list[tuple[int, int, int]]:
        # A line that allocates in backward has no blocks in the first samples, because backward is moved to the calling
        # thread only later.
        rows = [(step, *sample.get(line, (0, 0))) for step, sample in self._samples]
        empty = [place for place, row in enumerate(rows) if not row[2]]
        return rows[empty[-1] :] if empty else rows

    def _by_line(self) -> dict[str | None, tuple[int, int]]:
        sizes: Counter[str | None] = Counter()
        counts: Counter[str | None] = Counter()
        for segment in segments():
            if segment["device"] != self._device:
                continue
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    line = line_of(block.get("frames") or ())
                    # Requested bytes are summed, because a block may be up to 1 MiB larger than the request.
                    sizes[line] += -(-block.get("requested_size", block["size"]) // UNIT_BYTES) * UNIT_BYTES
                    counts[line] += 1
        return {line: (sizes[line], count) for line, count in counts.items()}

    def _has_unplaced_growth(self) -> bool:
        (_, before), (_, after) = self._samples[-2:]
        more = {line: row[0] - before.get(line, (0, 0))[0] for line, row in after.items()}
        unplaced = more.pop(None, 0)
        return unplaced > 0 and unplaced > max(more.values(), default=0)


def _rises_in_blocks(rows: list[tuple[int, int]]) -> bool:
    # It may stay equal in one of four samples, because a leak may skip steps.
    rises = [after[1] - before[1] for before, after in pairwise(rows)]
    return min(rises) >= 0 and rises.count(0) <= len(rises) // 4


def _rises_in_bytes(rows: list[tuple[int, int]]) -> bool:
    rises = [after[0] - before[0] for before, after in pairwise(rows)]
    return is_even(rises, even_share(rows[-1][1])) and all(after[1] >= before[1] for before, after in pairwise(rows))


def held_now(device: int) -> HeldByPath:
    """Return the memory that each variable holds on a device. Empty if the allocator cannot list its blocks."""
    try:
        from ullage.training.ownership.owners import owners
    except ImportError:
        return {}
    held: HeldByPath = {}
    try:
        rows = owners(min_bytes=_LEAST_HELD_BYTES, device=device)
    except UsageError:
        return {}
    for row in rows:
        path = _REPEATED_PART.sub(r"\1\1...", _PLACE.sub("[*]", row.path))
        blocks, n_bytes = held.get(path, (0, 0))
        held[path] = blocks + row.blocks, n_bytes + row.bytes
    return held


def holder_of_growth(before: HeldByPath, after: HeldByPath, *, by_blocks: bool) -> str | None:
    """Return the path from a variable to the object whose memory grew most, or None if no object's memory grew."""
    growth = {
        path: (blocks - before.get(path, (0, 0))[0], n_bytes - before.get(path, (0, 0))[1])
        for path, (blocks, n_bytes) in after.items()
    }
    # Blocks are preferred, because the tensors of a loop variable may have grown by more bytes than the leak.
    best = max(growth, key=lambda path: growth[path] if by_blocks else growth[path][::-1], default=None)
    return best if best is not None and growth[best][0 if by_blocks else 1] > 0 else None
