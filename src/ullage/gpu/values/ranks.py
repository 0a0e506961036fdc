"""Process groups, the messages between their ranks, and reductions of values over ranks.

Integers are reduced as NCCL and Gloo reduce them.
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
    """The ranks of a process group, and a name for it that is equal on all ranks."""

    def __init__(self, group: Any) -> None:
        distributed = torch.distributed.distributed_c10d
        found = _group_of(group)
        self.rank: int = found.rank()
        self.size: int = found.size()
        self.ranks: list[int] = distributed.get_process_group_ranks(found)
        self.name = f"{found.group_name}:{','.join(map(str, self.ranks))}"


def ranks_in(arguments: Sequence[Any]) -> int:
    """Return the size of the process group in an operator's arguments, or 1 without a process group."""
    for each in arguments:
        with suppress(AttributeError, RuntimeError, TypeError):
            if not isinstance(each, torch.Tensor | list | tuple):
                return int(_group_of(each).size())
    return 1


def _group_of(boxed: Any) -> Any:
    group = torch.distributed.ProcessGroup
    return boxed if isinstance(boxed, group) else group.unbox(boxed)


class Post(Protocol):
    """Sends messages between ranks."""

    is_alone: bool
    """Whether this rank runs without other ranks, and so exchanges no messages."""
    largest_team: int
    """The largest process group, in ranks, whose ranks exchange messages.

    In a larger group, every rank uses its own values in place of those of other ranks.
    """

    def send(self, key: str, value: bytes) -> None:
        """Send a message, which any rank can receive."""

    def receive(self, key: str, source: int) -> bytes | None:
        """Wait for a message and return it. Return None if its rank will not send it."""


class StorePost:
    """Sends messages through the store of torch.distributed, if all ranks run as processes."""

    is_alone = False
    largest_team = sys.maxsize

    def __init__(self) -> None:
        self.without: Callable[[], None] = lambda: None
        """A function that is called if a message will not arrive, because its rank has ended."""

    def send(self, key: str, value: bytes) -> None:
        """Write a message to the store."""
        _store().set(key, value)

    def receive(self, key: str, source: int) -> bytes | None:
        """Wait for a message in the store. Return None after a minute, or if the sending rank has ended."""
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
        """Announce that this rank sends no more messages."""
        _store().set(_END.format(torch.distributed.get_rank()), b"ended")


def _store() -> Any:
    return torch.distributed.distributed_c10d._get_default_store()


class NoPost:
    """Sends no messages, because this rank runs alone."""

    is_alone = True
    largest_team = 0

    def send(self, key: str, value: bytes) -> None:
        """Discard the message, because no other rank runs."""

    def receive(self, key: str, source: int) -> bytes | None:
        """Return None, because no other rank runs."""


def operation_of(boxed: Any) -> str:
    """Return the name of a reduction, such as "MAX", from an operator's argument. The result is empty if it is unknown.

    With torch 2.6 to 2.8 the argument does not contain the name, so the Python stack is searched for the call.
    """
    with suppress(AttributeError, RuntimeError, TypeError, ValueError):
        return str(torch.distributed.ReduceOp.RedOpType(int(boxed.op())).name)
    for frame in _frames_of_torch_distributed():
        if frame.f_code.co_name in _FUNCTIONS:
            return str(getattr(frame.f_locals.get("op"), "name", ""))
    return ""


def is_called_from_torch_distributed() -> bool:
    """Return whether a function of torch.distributed is on the Python stack.

    A collective that a script calls goes through torch.distributed. A collective from C++ code does not.
    """
    return next(_frames_of_torch_distributed(), None) is not None


def reduced(values: torch.Tensor, operation: str) -> torch.Tensor:
    """Reduce the values of several ranks to one value.

    Args:
        values: shape [ranks, ...]. The sum of booleans is true if any boolean is true.
        operation: a name of `ReduceOp`.

    Returns:
        A tensor of shape [...] and the same type.
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
