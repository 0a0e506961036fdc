"""Count the values that a script reads back from the GPU. The counts are separate for each line, for each certainty,
and for values that may decide something.
"""

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
    """The kind of a value that a script reads back from the GPU. It is named after what the value may decide."""

    SHAPE = "shape"
    """The value decides the size of a result."""
    BRANCH = "branch"
    """The value is a boolean that the script uses in `if`, `while` or `assert`."""
    NUMBER = "number"
    """The values are integers, which may become sizes, indices or counts."""
    FLOAT = "float"
    """The values are floating-point numbers, which are mostly logged."""

    @staticmethod
    def of_number(dtype: torch.dtype) -> "ReadKind":
        """Return the kind of a read of a single number. It depends on the data type of the number."""
        return ReadKind.BRANCH if dtype == torch.bool else ReadKind.of_copy(dtype)

    @staticmethod
    def of_copy(dtype: torch.dtype) -> "ReadKind":
        """Return the kind of a read that copies a tensor to the host. It depends on the data type of the tensor."""
        return ReadKind.FLOAT if dtype.is_floating_point or dtype.is_complex else ReadKind.NUMBER


class Read(NamedTuple):
    """The reads of GPU values that have the same source line, kind, operation and certainty."""

    line: Line | None
    kind: ReadKind
    operation: str
    certainty: Certainty


class Reads:
    """Counts reads of GPU values. Reads for printing or saving are not counted, nor are PyTorch's own checks."""

    def __init__(self) -> None:
        self.counts: Counter[Read] = Counter()
        self.bytes: Counter[Read] = Counter()
        self.missed: Callable[[], None] | None = None
        """A function that is called at each read that may change what the script does. It is used if values are not
        tracked; otherwise it is None.
        """
        self.asked = 0
        """The number of reads from the GPU that decide which branch of the script runs."""
        self._here = threading.local()

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Mark the calling thread's reads of GPU values within this context as already counted."""
        self._here.depth = getattr(self._here, "depth", 0) + 1
        try:
            yield
        finally:
            self._here.depth -= 1

    @property
    def is_answered(self) -> bool:
        """Return whether the calling thread's reads of GPU values are already counted."""
        return bool(getattr(self._here, "depth", 0))

    @property
    def are_logged_only(self) -> bool:
        """Return whether the script read only single floats that do not change what it does, such as a logged loss."""
        return all(
            read.kind == ReadKind.FLOAT and self.bytes[read] <= _NUMBER_BYTES * count
            for read, count in self.counts.items()
        )

    def truth_for(self, dtype: torch.dtype, content: BlockContent) -> bool | None:
        """Return True if a read of random values is one of PyTorch's own checks; otherwise None.

        Such a check would raise an error if it failed.
        """
        if dtype == torch.bool and content.certainty >= Certainty.DRAWN and _is_called_from(_CHECKING):
            return True
        return None

    def note(self, kind: ReadKind, operation: str, certainty: Certainty, size_bytes: int) -> None:
        """Count a read of a GPU value for the source line that made it."""
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
