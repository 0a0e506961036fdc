"""What a reduction of torch.distributed makes of the whole numbers of several ranks, as NCCL and Gloo do."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from operator import and_, or_, xor
from types import FrameType
from typing import Any, Final

import torch

_FAR: Final = 20
_FUNCTIONS: Final = ("all_reduce", "reduce", "all_reduce_coalesced")
_BITWISE: Final = {"BAND": and_, "BOR": or_, "BXOR": xor}


def operation_of(boxed: Any) -> str:
    """Return the name of the operation that a dispatched operator is given, such as "MAX"; nothing where none is told.

    The object does not tell with torch 2.6 to 2.8: there it is what torch.distributed's function was called with.
    """
    with suppress(AttributeError, RuntimeError, TypeError, ValueError):
        return str(torch.distributed.ReduceOp.RedOpType(int(boxed.op())).name)
    for frame in _frames_of_torch_distributed():
        if frame.f_code.co_name in _FUNCTIONS:
            return str(getattr(frame.f_locals.get("op"), "name", ""))
    return ""


def is_called_from_torch_distributed() -> bool:
    """Tell whether a function of torch.distributed runs, as a script calls them; what is in C++ calls none."""
    return next(_frames_of_torch_distributed(), None) is not None


def reduced(values: torch.Tensor, operation: str) -> torch.Tensor:
    """Return what an operation makes of the numbers of several ranks.

    Args:
        values: shape [ranks, ...]. Of booleans a sum is whether there is a true one.
        operation: a name of `ReduceOp`.

    Returns:
        Shape [...], of the same type.
    """
    match operation:
        case "MAX":
            found = values.amax(0)
        case "MIN":
            found = values.amin(0)
        case "PRODUCT":
            found = values.prod(0)
        case "AVG" if not values.is_floating_point():
            found = torch.div(values.sum(0), values.size(0), rounding_mode="trunc")
        case "AVG":
            found = values.mean(0)
        case "BAND" | "BOR" | "BXOR":
            found = reduce(_BITWISE[operation], values.unbind(0))
        case _:
            found = values.sum(0)
    return found.to(values.dtype)


def _frames_of_torch_distributed() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FAR):
        if frame is None:
            return
        if frame.f_code.co_filename.endswith("torch/distributed/distributed_c10d.py"):
            yield frame
        frame = frame.f_back
