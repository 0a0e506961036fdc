"""Whether an error says that memory ran out, and letting go of what the failed attempt held.

By its type first, then by its text: cuBLAS, cuDNN, NCCL and the driver say it in words of their own. The machine's own
memory running out is another matter where the model is on a card: no smaller batch on the card cures that.
"""

from typing import Final

import torch

from ullage.message.message import Message, hits_of, read_message
from ullage.message.wording import Kind

_OF_A_CARD: Final = (Kind.ALLOCATOR, Kind.LIMIT, Kind.DRIVER, Kind.LIBRARY)
_READ: Final = 1 << 16  # characters of an error
_CAUSES: Final = 8  # how deep errors are looked into that were raised from one another


def read_oom(error: BaseException, *, is_on_host: bool = False) -> Message | None:
    """Return what an error says of memory that ran out; None for every other error.

    An error that was raised from one (`raise ... from error`) says it too. A request that makes no sense (more than any
    card has), one that ran out of addresses, and pinned memory of the machine are no shortage of the card's memory.

    Args:
        error: any exception.
        is_on_host: whether the model is on the CPU, whose allocator's errors count then.
    """
    one: BaseException | None = error
    for _ in range(_CAUSES):
        if one is None:
            return None
        message = _read(one, is_on_host=is_on_host)
        if message is not None:
            return message
        one = one.__cause__
    return None


def _read(error: BaseException, *, is_on_host: bool) -> Message | None:
    is_oom = isinstance(error, torch.OutOfMemoryError)
    if not (is_oom or isinstance(error, RuntimeError) or (is_on_host and isinstance(error, MemoryError))):
        return None
    message = read_message(str(error))
    if message is not None and message.kind is Kind.ALLOCATOR and not (is_oom or _says_it_itself(str(error))):
        return None
    if message is None:
        return _unread(error) if is_oom or isinstance(error, MemoryError) else None
    if is_on_host and message.kind is Kind.HOST:
        return message
    return message if message.kind in _OF_A_CARD else None


def _says_it_itself(text: str) -> bool:
    """Tell whether the words stand where an error begins, and are not quoted by one that is about something else."""
    hit = next(hits_of(text[:_READ]), None)
    before = text[: hit.start].rpartition("\n")[2] if hit is not None else ""
    is_in_a_name = before.endswith(".")  # torch.OutOfMemoryError
    return is_in_a_name or not before.strip() or before.rstrip().endswith((":", "]", ">", "("))


def _unread(error: BaseException) -> Message:
    """An error whose type says it all and whose words are none that are known."""
    return Message(kind=Kind.ALLOCATOR, wording="unknown", text=str(error)[:600], is_certain=True)
