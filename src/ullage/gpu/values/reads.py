"""Count how often each source line of a script reads values from the GPU."""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Final, NamedTuple

import torch

from ullage.gpu.tracing.source import Line, callers_line
from ullage.gpu.values.assertion import passing_truth
from ullage.gpu.values.consequence import may_decide
from ullage.gpu.values.content import BlockContent, Certainty

# Reads in these files decide nothing: they print, share random states, keep saved tensors on the host, or write a
# checkpoint.
_QUIET: Final = (
    *("torch/_tensor_str.py", "torch/distributed/tensor/_random.py"),
    "torch/autograd/graph.py",  # save_on_cpu: saved values come back unchanged
    "torch/_inductor/runtime/triton_heuristics.py",  # so do the arguments of kernels that are timed
    *("torch/serialization.py", "safetensors/torch.py"),
)
_CHECKING: Final = ("torch/distributions/distribution.py",)
_FAR: Final = 40
_NUMBER_BYTES: Final = 8


class ReadKind(StrEnum):
    """The kind of value that a script reads from the GPU."""

    SHAPE = "shape"
    """The value decides the size of a tensor."""
    BRANCH = "branch"
    """The value is a boolean that the script uses in `if`, `while` or `assert`."""
    NUMBER = "number"
    """The values are integers, which may become sizes, indices or counts."""
    FLOAT = "float"
    """The values are floating-point numbers. Most scripts only log such values."""

    @staticmethod
    def of_number(dtype: torch.dtype) -> "ReadKind":
        """Return the kind of a single value with this data type."""
        return ReadKind.BRANCH if dtype == torch.bool else ReadKind.of_copy(dtype)

    @staticmethod
    def of_copy(dtype: torch.dtype) -> "ReadKind":
        """Return the kind of values with this data type."""
        return ReadKind.FLOAT if dtype.is_floating_point or dtype.is_complex else ReadKind.NUMBER


class Read(NamedTuple):
    """The key under which reads of GPU values are counted. Reads with equal keys are counted together."""

    line: Line | None
    kind: ReadKind
    operation: str
    certainty: Certainty


_UNSEEN_READ: Final = Read(None, ReadKind.SHAPE, "an operator", Certainty.UNKNOWN)


class Reads:
    """Counts reads of GPU values. Printing, saving and PyTorch's own checks do not count."""

    def __init__(self) -> None:
        self.counts: Counter[Read] = Counter()
        self.bytes: Counter[Read] = Counter()
        self.missed: Callable[[], None] | None = None
        """A function to call when the script reads a GPU value that may change what the script does.

        None means that ullage computes the values that the script reads.
        """
        self.asked = 0
        """The number of reads that decide a branch of the script."""
        self._here = threading.local()

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Do not count the calling thread's reads within this context, because they are already counted."""
        self._here.depth = getattr(self._here, "depth", 0) + 1
        try:
            yield
        finally:
            self._here.depth -= 1

    @property
    def is_answered(self) -> bool:
        """Whether this thread is inside a read of GPU values that is already counted."""
        return bool(getattr(self._here, "depth", 0))

    @property
    def are_logged_only(self) -> bool:
        """Return whether the script read only single floats for logging, such as a loss."""
        return all(
            read.kind == ReadKind.FLOAT and self.bytes[read] <= _NUMBER_BYTES * count
            for read, count in self.counts.items()
        )

    def truth_for(self, dtype: torch.dtype, content: BlockContent) -> bool | None:
        """Return the value of a random boolean with which a check of the script or of `torch.distributions` passes.

        Return None if the read is not part of such a check, or if the value is not random.
        """
        if dtype != torch.bool or content.certainty < Certainty.DRAWN:
            return None
        if _is_called_from(_CHECKING):
            return True
        line = callers_line()
        if line is None or (truth := passing_truth(line.file, line.line)) is None:
            return None
        self.note(ReadKind.BRANCH, "check", Certainty.ASSUMED, dtype.itemsize)
        return truth

    def note(self, kind: ReadKind, operation: str, certainty: Certainty, size_bytes: int) -> None:
        """Count one read of a GPU value for the source line that reads it."""
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

    def note_fault(self, kind: ReadKind, operation: str) -> None:
        """Count a read of a GPU value during which ullage itself failed. The value is unknown."""
        read = _UNSEEN_READ
        with suppress(Exception):  # The same error may occur again.
            read = Read(callers_line(), kind, operation, Certainty.UNKNOWN)
        self.counts[read] += 1


def _is_called_from(files: tuple[str, ...]) -> bool:
    frame = sys._getframe(2)
    for _ in range(_FAR):
        if frame.f_back is None:
            return False
        frame = frame.f_back
        if frame.f_code.co_filename.endswith(files):
            return True
    return False
