"""Tells whether an error means that memory ran out.

The error's type is checked first, then its text: cuBLAS, cuDNN, NCCL and the driver each have their own words for it.
If the model is on a card, running out of host memory does not count: no smaller batch on the card would help.
"""

from typing import Final

import torch

from ullage.recorded.message.message import Message, hits_of, read_message
from ullage.recorded.message.wording import MessageKind

_KINDS_OF_CARD_MEMORY: Final = (MessageKind.ALLOCATOR, MessageKind.LIMIT, MessageKind.DRIVER, MessageKind.LIBRARY)
_READ: Final = 1 << 16  # characters of an error
_CAUSES: Final = 8  # how deep errors are looked into that were raised from one another


def read_oom(error: BaseException, *, is_on_host: bool = False) -> Message | None:
    """Return what an out-of-memory error says; None for every other error.

    An error raised from one (`raise ... from error`) counts too. Not counted, because the card's memory is not what is
    missing: requests of more than any card has, running out of addresses, and running out of pinned host memory.

    Args:
        error: any exception.
        is_on_host: whether the model is on the CPU, so that errors of the CPU allocator count.
    """
    for _ in range(_CAUSES):
        message = _read(error, is_on_host=is_on_host)
        if message is not None or error.__cause__ is None:
            return message
        error = error.__cause__
    return None


def _read(error: BaseException, *, is_on_host: bool) -> Message | None:
    is_oom = isinstance(error, torch.OutOfMemoryError)
    if not (is_oom or isinstance(error, RuntimeError) or (is_on_host and isinstance(error, MemoryError))):
        return None
    message = read_message(str(error))
    if message is not None and message.kind is MessageKind.ALLOCATOR and not (is_oom or _says_it_itself(str(error))):
        return None
    if message is None and (is_oom or isinstance(error, MemoryError)):  # by its type; its text is not known
        return Message(kind=MessageKind.ALLOCATOR, wording="unknown", text=str(error)[:600], is_certain=True)
    is_counted = message is not None and (
        message.kind in _KINDS_OF_CARD_MEMORY or (is_on_host and message.kind is MessageKind.HOST)
    )
    return message if is_counted else None


def _says_it_itself(text: str) -> bool:
    """Tell whether the out-of-memory text starts the error's message, and is not quoted inside another message."""
    hit = next(hits_of(text[:_READ]), None)
    before = text[: hit.start].rpartition("\n")[2] if hit is not None else ""
    is_in_a_name = before.endswith(".")  # torch.OutOfMemoryError
    return is_in_a_name or not before.strip() or before.rstrip().endswith((":", "]", ">", "("))
