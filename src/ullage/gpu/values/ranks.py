"""The ranks of a process group: who they are, how a message goes from one to another, what a reduction makes of theirs.

Whole numbers of several ranks are reduced as NCCL and Gloo do.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import reduce
from operator import and_, or_, xor
from types import FrameType
from typing import Any, Final, Protocol

import torch

_PATIENCE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.01
_END: Final = "ullage/ended/{}"
_FAR: Final = 20
_FUNCTIONS: Final = ("all_reduce", "reduce", "all_reduce_coalesced")
_BITWISE: Final = {"BAND": and_, "BOR": or_, "BXOR": xor}


class Team:
    """The ranks of a process group, as all of them name it."""

    def __init__(self, group: Any) -> None:
        distributed = torch.distributed.distributed_c10d
        found = _group_of(group)
        self.rank: int = found.rank()
        self.size: int = found.size()
        self.ranks: list[int] = distributed.get_process_group_ranks(found)
        self.name = f"{found.group_name}:{','.join(map(str, self.ranks))}"


def ranks_in(arguments: Sequence[Any]) -> int:
    """Return how many ranks the process group has that is among an operator's arguments; 1 where none is."""
    for each in arguments:
        with suppress(AttributeError, RuntimeError, TypeError):
            if not isinstance(each, torch.Tensor | list | tuple):
                return int(_group_of(each).size())
    return 1


def _group_of(boxed: Any) -> Any:
    group = torch.distributed.ProcessGroup
    return boxed if isinstance(boxed, group) else group.unbox(boxed)


class Post(Protocol):
    """What carries messages from rank to rank."""

    is_alone: bool
    """Whether this rank runs alone in its process."""
    largest_team: int
    """The largest group whose ranks tell each other what they gather, sum or exchange; in a larger one every rank takes
    its own for what the others have."""

    def send(self, key: str, value: bytes) -> None:
        """Leave a message for whoever asks for it."""

    def receive(self, key: str, source: int) -> bytes | None:
        """Wait for a rank's message, and return it; None if it will not come."""


class StorePost:
    """Ranks that all run: their messages go through the store in which they have met."""

    is_alone = False
    largest_team = sys.maxsize

    def __init__(self) -> None:
        self.without: Callable[[], None] = lambda: None
        """Called where a message will not come because its sender has ended."""

    def send(self, key: str, value: bytes) -> None:
        """Leave a message in the store."""
        _store().set(key, value)

    def receive(self, key: str, source: int) -> bytes | None:
        """Wait for a message in the store, as long as its sender has not ended; None after a minute."""
        store = _store()
        latest = time.monotonic() + _PATIENCE_SECONDS
        while not store.check([key]):
            if store.check([_END.format(source)]) and not store.check([key]):
                self.without()
                return None
            if time.monotonic() > latest:
                return None
            time.sleep(_PAUSE_SECONDS)
        return bytes(store.get(key))

    def end(self) -> None:
        """Say that this rank sends nothing more."""
        _store().set(_END.format(torch.distributed.get_rank()), b"ended")


def _store() -> Any:
    return torch.distributed.distributed_c10d._get_default_store()


class NoPost:
    """A rank that runs alone, and of which nobody knows the others."""

    is_alone = True
    largest_team = 0

    def send(self, key: str, value: bytes) -> None:
        """Do nothing: nobody asks for it."""

    def receive(self, key: str, source: int) -> bytes | None:
        """Return None: no message comes."""


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
