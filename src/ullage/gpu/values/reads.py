"""What a script has read back from the card: by its line, how well it is known, and whether it may decide something."""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, NamedTuple

import torch

from ullage.gpu.tracing.source import Line, callers_line
from ullage.gpu.values.consequence import may_decide
from ullage.gpu.values.content import BlockContent, Certainty

_QUIET: Final = (
    *("torch/_tensor_str.py", "torch/distributed/tensor/_random.py"),
    "torch/autograd/graph.py",  # save_on_cpu: what is saved on the host comes back as it was
    "torch/_inductor/runtime/triton_heuristics.py",  # so do arguments of kernels that are timed
    *("torch/serialization.py", "safetensors/torch.py"),
)
"""Files that read in order to print, to share the state of random numbers, to keep on the host what comes back
unchanged, or to write a checkpoint."""
_CHECKING: Final = ("torch/distributions/distribution.py",)
_FAR: Final = 40
_NUMBER_BYTES: Final = 8


class ReadKind(StrEnum):
    """What a value that is read back may decide."""

    SHAPE = "shape"
    """The size of a result."""
    BRANCH = "branch"
    """A boolean: an `if`, `while` or `assert`."""
    NUMBER = "number"
    """Whole numbers, which may become sizes, indices or counts."""
    FLOAT = "float"
    """Floating-point numbers: mostly written to a log."""

    @staticmethod
    def of_number(dtype: torch.dtype) -> "ReadKind":
        """Return what one number of a type may decide."""
        return ReadKind.BRANCH if dtype == torch.bool else ReadKind.of_copy(dtype)

    @staticmethod
    def of_copy(dtype: torch.dtype) -> "ReadKind":
        """Return what a copy to the host may decide."""
        return ReadKind.FLOAT if dtype.is_floating_point or dtype.is_complex else ReadKind.NUMBER


class Read(NamedTuple):
    """The reads of one line that are alike."""

    line: Line | None
    kind: ReadKind
    operation: str
    certainty: Certainty


class Reads:
    """Counts reads; those that are made in order to print or save, or by checks of PyTorch's own, count for nothing."""

    def __init__(self) -> None:
        self.counts: Counter[Read] = Counter()
        self.bytes: Counter[Read] = Counter()
        self.missed: Callable[[], None] | None = None
        """A function that is called at each read from the first on that may decide; where nobody follows values."""
        self.asked = 0
        """The number of reads that a branch waits for."""
        self._here = threading.local()

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Say that what the calling thread reads from the driver is accounted for already."""
        self._here.depth = getattr(self._here, "depth", 0) + 1
        try:
            yield
        finally:
            self._here.depth -= 1

    @property
    def is_answered(self) -> bool:
        """Whether the calling thread's read is accounted for already."""
        return bool(getattr(self._here, "depth", 0))

    @property
    def are_logged_only(self) -> bool:
        """Whether all that was read were single floats that decide nothing, as a loss that is logged."""
        return all(
            read.kind == ReadKind.FLOAT and self.bytes[read] <= _NUMBER_BYTES * count
            for read, count in self.counts.items()
        )

    def truth_for(self, dtype: torch.dtype, content: BlockContent) -> bool | None:
        """Return True for a check of PyTorch's own of drawn values, which would be an error if it failed."""
        if dtype == torch.bool and content.certainty >= Certainty.DRAWN and _is_called_from(_CHECKING):
            return True
        return None

    def note(self, kind: ReadKind, operation: str, certainty: Certainty, size_bytes: int) -> None:
        """Count a read."""
        if _is_called_from(_QUIET):
            return
        line = callers_line()
        if kind == ReadKind.FLOAT and certainty >= Certainty.DRAWN and line and may_decide(line.file, line.line):
            kind = ReadKind.BRANCH
        self.asked += kind == ReadKind.BRANCH
        read = Read(line, kind, operation, certainty)
        self.counts[read] += 1
        self.bytes[read] += size_bytes
        if self.missed is not None and not self.are_logged_only:
            self.missed()


def _is_called_from(files: tuple[str, ...]) -> bool:
    frame = sys._getframe(2)
    for _ in range(_FAR):
        if frame.f_back is None:
            return False
        frame = frame.f_back
        if frame.f_code.co_filename.endswith(files):
            return True
    return False
