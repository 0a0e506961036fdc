"""Figures that no machine has: a text in which they stand was damaged, cut, or put together from others."""

from dataclasses import fields
from typing import Final

from ullage.base.units import GIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.verdict import TextVerdict
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory
from ullage.recorded.message.wording import MessageKind

_MOST_BYTES: Final = 1 << 50
"""More than any machine has."""
_MOST_BEYOND_THE_CARD_BYTES: Final = 512 * GIB
"""More than Windows and WSL lend a card of the machine's memory."""
_TOLERANCE: Final = 0.01
"""Part by which two figures may differ that are rounded to a hundredth of their unit."""


def judge_impossible(message: Message, server: ServerMemory | None) -> TextVerdict | None:
    """Return the verdict on a text whose figures cannot be; None if they can.

    The request may be of any size: a wrong shape asks for what no machine has.
    """
    why = _why(message, server)
    if why is None:
        return None
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=f"The figures of the text are impossible, so nothing can be concluded from it: {why}.",
        notes=("give the text as the program wrote it; torch.cuda.mem_get_info() says what a card has, while it can",),
    )


def _why(message: Message, server: ServerMemory | None) -> str | None:
    figures = [
        *((field.name, getattr(message, field.name)) for field in fields(message) if field.name != "requested_bytes"),
        *((field.name, getattr(server, field.name, None)) for field in fields(ServerMemory)),
    ]
    if any(name == "total_bytes" and size == 0 for name, size in figures):
        return "the card has 0 bytes"
    for name, size in figures:
        if name.endswith("_bytes") and isinstance(size, int) and size > _MOST_BYTES:
            return f"{text_of_bytes(size)} are more than any machine has"
    if message.kind is not MessageKind.ALLOCATOR:
        return None
    allocated, reserved, total = message.allocated_bytes, message.reserved_bytes, message.total_bytes
    if allocated is not None and reserved is not None and allocated > reserved + _TOLERANCE * (allocated + GIB):
        return f"{text_of_bytes(allocated)} are allocated of {text_of_bytes(reserved)} reserved"
    held = max(reserved or 0, (allocated or 0) + (message.unallocated_bytes or 0))
    if total is not None and held > 4 * total + _MOST_BEYOND_THE_CARD_BYTES:
        return f"PyTorch holds {text_of_bytes(held)} of a card of {text_of_bytes(total)}"
    return None
