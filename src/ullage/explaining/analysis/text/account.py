"""The figures that a text has about a card's memory, completed so that they add up to the card.

The module does not know why a request failed."""

from dataclasses import dataclass
from typing import Final

from ullage.base.units import GIB, MIB
from ullage.recorded.message.message import Message, OtherProcess
from ullage.recorded.message.wording import MessageKind

_ROUNDING_BYTES: Final = 64 * MIB
"""Tolerance for sums: PyTorch rounds each figure to a hundredth of its unit, and the driver's figures are of slightly
different moments."""
CONTEXT_BYTES: Final = 2 * GIB
"""Upper bound of a context with the libraries' workspaces and NCCL's buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The parts of a card in bytes: allocated + cached + outside + others + unnamed + free = total."""

    total_bytes: int
    free_bytes: int
    allocated_bytes: int
    cached_bytes: int
    outside_bytes: int
    """Bytes of this process outside PyTorch's allocator: the context and libraries."""
    others_bytes: int
    """Bytes of other processes."""
    unnamed_bytes: int
    """Used bytes that the text assigns to no process: the context, other libraries, other processes."""
    own_number: int | None = None
    """The process number by which the driver lists this very process, where it runs in a container."""
    spilt_bytes: int = 0
    """Bytes that PyTorch holds beyond what is used of the card: Windows or WSL keeps them in system memory."""

    @property
    def reserved_bytes(self) -> int:
        """Bytes that PyTorch has reserved: allocated and cached."""
        return self.allocated_bytes + self.cached_bytes


def account_of(message: Message) -> Account | None:
    """Return the account of a message; None where the total, the free or the allocated bytes are missing.

    None too where they are another program's, or contradict each other.
    """
    total, free, allocated = message.total_bytes, message.free_bytes, message.allocated_bytes
    if total is None or free is None or allocated is None or free > total or message.kind is MessageKind.PROGRAM:
        return None
    cached = message.unallocated_bytes or 0
    rest = total - free - allocated - cached
    own = _own(message, allocated + cached, total - free)
    spilt = -rest if rest < -_ROUNDING_BYTES else 0
    listed = sum(process.used_bytes for process in message.other_processes if process is not own)
    process = message.process_bytes if own is None else own.used_bytes
    rest = max(0, rest)
    if process is not None and process + _ROUNDING_BYTES >= allocated + cached:
        outside = min(rest, max(0, process - allocated - cached))
        others = rest - outside
        # A few bytes of rounding are nobody's process.
        if not listed and others <= _ROUNDING_BYTES:
            outside, others = rest, 0
        unnamed = 0
    else:
        outside, others = 0, min(rest, listed)
        unnamed = rest - others
    return Account(
        total_bytes=total,
        free_bytes=free,
        allocated_bytes=allocated,
        cached_bytes=cached,
        outside_bytes=outside,
        others_bytes=others,
        unnamed_bytes=unnamed,
        own_number=own.number if own is not None else None,
        spilt_bytes=spilt,
    )


def _own(message: Message, reserved_bytes: int, used_bytes: int) -> OtherProcess | None:
    """Find this process among the others: in a container the driver knows it by a number that PyTorch does not.

    It is the one without which too little is used to hold what PyTorch has, or the one that has just a context more.
    """
    if message.process_bytes is not None or not reserved_bytes:
        return None
    large = [process for process in message.other_processes if process.used_bytes + _ROUNDING_BYTES >= reserved_bytes]
    needed = [process for process in large if used_bytes - process.used_bytes + _ROUNDING_BYTES < reserved_bytes]
    if len(needed) == 1:
        return needed[0]
    fitting = [process for process in large if process.used_bytes - reserved_bytes <= CONTEXT_BYTES]
    return min(fitting, key=lambda process: process.used_bytes, default=None)
