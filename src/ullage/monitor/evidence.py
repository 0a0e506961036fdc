"""What grows, by the line that allocated it: block lists some steps apart, and what PyTorch records in between.

Recording is switched on for these steps only, where the user has not, and without a history: each live block knows the
Python lines that asked for it. Blocks that backward makes are allocated in its own threads, which have no Python
frames; where those grow, backward runs in the thread that calls it until the evidence is complete.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import torch

from ullage.monitor.series import EVEN
from ullage.ownership.block import line_of, segments

LOOKS: Final = 4
"""Block lists that are needed before anything is said."""
UNIT_BYTES: Final = 512
"""The least that a tensor takes of the card; sizes are multiples of it."""
_MOST_LOOKS: Final = 16
_PART: Final = 10
"""Lines that hold less than one part in so many of the growth are not named."""
_FEW_BLOCKS: Final = 8
_EVEN_OF_MANY: Final = 0.75

_Look = tuple[int, dict[str | None, tuple[int, int]]]
"""The step, and for each line the bytes and the number of its live blocks."""
_Row = tuple[int, int, int]
"""The step, bytes and blocks."""


class Evidence:
    """The live blocks of a device by line, every few steps of a phase."""

    def __init__(self, device: int, stride: int) -> None:
        self._device = device
        self._stride = stride
        self._due = 0
        self._looks: list[_Look] = []
        self._single_thread: Any = None
        self._records = False
        self.is_possible = torch.cuda.get_allocator_backend() == "native"

    def begin(self, step: int) -> None:
        """Have blocks remember who asked for them, from now on.

        Args:
            step: of the phase.
        """
        if self.is_possible and not torch._C._cuda_isHistoryEnabled():
            torch.cuda.memory._record_memory_history("state", context="alloc", stacks="python", max_entries=1)
            self._records = True
        # What the first step replaces, such as gradients, is recorded anew before it is counted.
        self._due = step + 2

    def end(self) -> None:
        """Put everything back as it was."""
        if self._records:
            self._records = False
            torch.cuda.memory._record_memory_history(None)
        if self._single_thread is not None:
            self._single_thread.__exit__(None, None, None)
            self._single_thread = None

    def look(self, step: int) -> None:
        """Count the live blocks by line, where it is time to."""
        if step < self._due or not self.is_possible:
            return
        self._due = step + self._stride
        if len(self._looks) == _MOST_LOOKS:
            del self._looks[1]
        self._looks.append((step, self._by_line()))
        if self._single_thread is None and len(self._looks) >= 2 and self._has_unplaced_growth():
            self._single_thread = torch.autograd.set_multithreading_enabled(False)

    @property
    def is_complete(self) -> bool:
        """Whether enough has been seen."""
        return len(self._looks) >= LOOKS or not self.is_possible

    @property
    def growth_per_step(self) -> int:
        """Bytes that a step of the phase keeps more, over all lines."""
        if len(self._looks) < 2:
            return 0
        (first, before), (last, after) = self._looks[0], self._looks[-1]
        more = sum(size for size, _ in after.values()) - sum(size for size, _ in before.values())
        return more // max(1, last - first)

    def lines(self, *, by_blocks: bool) -> tuple[tuple[str, int], ...]:
        """Return the lines that grow from look to look, with bytes a step, the most first.

        Lines whose blocks become more come before those whose bytes do: these may only belong to longer batches.

        Args:
            by_blocks: whether blocks become more in all. Where they do not, a line's may only replace blocks that were
                there before lines were known.
        """
        if len(self._looks) < LOOKS:
            return ()
        for is_rising in (_rises_in_blocks, _rises_in_bytes):
            found = {}
            for line in self._looks[-1][1]:
                known = self._known(line) if line is not None else []
                if known and not by_blocks:
                    known = [(step, size + other, n + others) for (step, size, n), (other, others) in self._and(known)]
                if len(known) >= LOOKS - 1 and is_rising([(size, count) for _, size, count in known]):
                    found[str(line)] = (known[-1][1] - known[0][1]) // max(1, known[-1][0] - known[0][0])
            least = max(1, max(found.values(), default=0) // _PART)
            if any(rate > 0 for rate in found.values()):
                rows = sorted(found.items(), key=lambda row: -row[1])
                return tuple((line, rate) for line, rate in rows if rate >= least)
        return ()

    def _and(self, known: list[_Row]) -> Iterator[tuple[_Row, tuple[int, int]]]:
        """Yield rows of a line, each with the bytes and blocks that no line is known of."""
        return zip(known, (look.get(None, (0, 0)) for _, look in self._looks[-len(known) :]), strict=True)

    def _known(self, line: str | None) -> list[_Row]:
        """Step, bytes and blocks of a line, from the last look on at which it had none: backward's are known later."""
        rows = [(step, *look.get(line, (0, 0))) for step, look in self._looks]
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
                    # What was asked for: a block may be larger by up to a MiB that was not worth cutting off.
                    sizes[line] += -(-block.get("requested_size", block["size"]) // UNIT_BYTES) * UNIT_BYTES
                    counts[line] += 1
        return {line: (sizes[line], count) for line, count in counts.items()}

    def _has_unplaced_growth(self) -> bool:
        (_, before), (_, after) = self._looks[-2:]
        more = {line: row[0] - before.get(line, (0, 0))[0] for line, row in after.items()}
        unplaced = more.pop(None, 0)
        return unplaced > 0 and unplaced > max(more.values(), default=0)


def _rises_in_blocks(rows: list[tuple[int, int]]) -> bool:
    """Tell whether blocks become more; one pause in four may be the chance of a leak that does not come every step."""
    rises = [after[1] - before[1] for before, after in pairwise(rows)]
    return min(rises) >= 0 and rises.count(0) <= len(rises) // 4


def _rises_in_bytes(rows: list[tuple[int, int]]) -> bool:
    """Tell whether bytes become evenly more, and blocks no fewer."""
    mean = (rows[-1][0] - rows[0][0]) / (len(rows) - 1)
    rises = [after[0] - before[0] for before, after in pairwise(rows)]
    # Many blocks, of which some are replaced by larger ones, rise by chance.
    even = EVEN if rows[-1][1] <= _FEW_BLOCKS else _EVEN_OF_MANY
    is_even = min(rises) >= even * mean > 0 and max(rises) * even <= mean
    return is_even and all(after[1] >= before[1] for before, after in pairwise(rows))
