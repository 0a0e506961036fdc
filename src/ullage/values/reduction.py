"""What a reduction of torch.distributed makes of the whole numbers of several ranks, as NCCL does."""

import sys
from contextlib import suppress
from types import FrameType
from typing import Any, Final

import torch

_FAR: Final = 20
_FUNCTIONS: Final = ("all_reduce", "reduce", "all_reduce_coalesced")


def operation_of(boxed: Any) -> str:
    """Return the name of the operation that a dispatched operator is given, such as "MAX"; nothing where none is told.

    The object does not tell with torch 2.6 to 2.8: there it is what torch.distributed's function was called with.
    """
    with suppress(AttributeError, RuntimeError, TypeError, ValueError):
        return str(torch.distributed.ReduceOp.RedOpType(int(boxed.op())).name)
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FAR):
        if frame is None:
            break
        code = frame.f_code
        if code.co_name in _FUNCTIONS and code.co_filename.endswith("torch/distributed/distributed_c10d.py"):
            return str(getattr(frame.f_locals.get("op"), "name", ""))
        frame = frame.f_back
    return ""


def reduced(values: torch.Tensor, operation: str) -> torch.Tensor:
    """Return what an operation makes of the numbers of several ranks.

    Args:
        values: shape [ranks, numbers], of whole numbers or booleans, of which a sum is whether there is a true one.
        operation: a name of `ReduceOp`. The sum stands for what NCCL does not know.

    Returns:
        Shape [numbers], of the same type.
    """
    match operation:
        case "MAX":
            found = values.amax(0)
        case "MIN":
            found = values.amin(0)
        case "PRODUCT":
            found = values.prod(0)
        case "AVG":
            found = torch.div(values.sum(0), values.size(0), rounding_mode="trunc")
        case _:
            found = values.sum(0)
    return found.to(values.dtype)
