"""What allocated a block where no line of the user's is on its stack: named by the C++ frames that were recorded.

Backward runs in threads of PyTorch's engine, so that a stack has the operation (`torch::autograd::generated::
DivBackward0::apply`) and none of Python's frames. Names are those of torch 2.1 to 2.15.
"""

import re
from collections.abc import Sequence
from typing import Final

from ullage.base.source_location import shortened
from ullage.recorded.history import Frame

NO_LINE: Final = "(no line of yours)"
"""The text shown in place of a line where no frame tells anything."""

NO_STACK: Final = "(no stack was recorded)"
"""The text shown in place of a line where an entry has no stack."""

_KINDS: Final = (
    (re.compile(r"\bAccumulateGrad(::|_)"), "(gradients of parameters: AccumulateGrad)"),
    (re.compile(r"(\w+Backward\d*)(?:<.*>)?::apply\b"), "(backward: {})"),
    (re.compile(r"\bc10d::|\bnccl\w*\("), "(communication between cards: c10d)"),
    (
        re.compile(r"\b(?:getCurrentCUDABlas|cublasLt|getCUDABlasLt|getChosenWorkspace|getNewWorkspace)"),
        "(workspace of cuBLAS)",
    ),
    (re.compile(r"\bautograd::Engine::"), "(backward)"),
)
"""The text for an allocation with such a frame, the clearest first."""
_OPERATION: Final = re.compile(r"\bat::_ops::(\w+?)::(?:call|redispatch)\b")


def operation_name(frames: Sequence[Frame]) -> str:
    """Return what allocated, in brackets because it is no line, from frames with the innermost first."""
    names = [frame.name for frame in frames]
    for pattern, text in _KINDS:
        found = next(filter(None, map(pattern.search, names)), None)
        if found is not None:
            return shortened(text.format(*found.groups()))
    # The outermost operation is the one that somebody called.
    called = next(filter(None, map(_OPERATION.search, reversed(names))), None)
    return f"(operation {shortened(called[1])}, called from C++)" if called is not None else NO_LINE
