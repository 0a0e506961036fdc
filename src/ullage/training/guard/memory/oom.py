"""Decides whether an exception is an out-of-memory error.

cuBLAS, cuDNN, NCCL and the driver each use different error messages. If the model is on a GPU, errors about host memory
do not count.
"""

from typing import Final

import torch

from ullage.recorded.message.message import Message, hits_of, read_message
from ullage.recorded.message.wording import MessageKind

_KINDS_OF_CARD_MEMORY: Final = (MessageKind.ALLOCATOR, MessageKind.LIMIT, MessageKind.DRIVER, MessageKind.LIBRARY)
_READ: Final = 1 << 16  # characters of an error text that are searched
_CAUSES: Final = 8  # maximum length of a chain of errors raised from one another


def read_oom(error: BaseException, *, is_on_host: bool = False) -> Message | None:
    """Parse the message of an out-of-memory error. Return None for every other error.

    An error that was raised from an out-of-memory error (`raise ... from error`) counts too. Errors that freeing GPU
    memory cannot solve do not count, such as a lack of pinned host memory.

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
    if message is None and (
        is_oom or isinstance(error, MemoryError)
    ):  # the exception type is enough; the text has no known wording
        return Message(kind=MessageKind.ALLOCATOR, wording="unknown", text=str(error)[:600], is_certain=True)
    is_counted = message is not None and (
        message.kind in _KINDS_OF_CARD_MEMORY or (is_on_host and message.kind is MessageKind.HOST)
    )
    return message if is_counted else None


def _says_it_itself(text: str) -> bool:
    hit = next(hits_of(text[:_READ]), None)
    before = text[: hit.start].rpartition("\n")[2] if hit is not None else ""
    is_in_a_name = before.endswith(".")  # torch.OutOfMemoryError
    return is_in_a_name or not before.strip() or before.rstrip().endswith((":", "]", ">", "("))
