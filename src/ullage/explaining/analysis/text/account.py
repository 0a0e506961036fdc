"""Completes the memory figures of an error message so that they add up to the GPU's total memory."""

from dataclasses import dataclass
from typing import Final

from ullage.base.units import GIB, MIB
from ullage.recorded.message.message import Message, OtherProcess
from ullage.recorded.message.wording import MessageKind

# A tolerance for sums, in bytes. PyTorch rounds each figure to a hundredth of its unit, and the driver's figures are
# from slightly different times.
_ROUNDING_BYTES: Final = 64 * MIB
CONTEXT_BYTES: Final = 2 * GIB
"""The largest plausible size of a CUDA context in bytes, including library workspaces and NCCL buffers."""


_UNIFIED_BYTES: Final = (115 * GIB, 126 * GIB)
"""The sizes of GPU memory that only chips with unified memory have: GB10 (119.6 to 121.7 GiB) and Jetson Thor (122.8
GiB). Intel's and Habana's accelerators with 128 GB do not print this message under CUDA.
"""


def is_unified(total_bytes: int | None) -> bool:
    """Return whether a GPU with this total memory shares the memory of the CPU."""
    return total_bytes is not None and _UNIFIED_BYTES[0] <= total_bytes <= _UNIFIED_BYTES[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The memory of a GPU in bytes, divided into parts. All parts add up to the total."""

    total_bytes: int
    free_bytes: int
    allocated_bytes: int
    cached_bytes: int
    outside_bytes: int
    """The bytes that this process uses outside PyTorch's allocator, such as the CUDA context."""
    others_bytes: int
    """The bytes that other processes use."""
    unnamed_bytes: int
    """The bytes in use that the message assigns to no process."""
    own_number: int | None = None
    """The process ID of the failing process as the driver reports it, if it runs in a container. Otherwise None."""
    spilt_bytes: int = 0
    """The reserved bytes that do not fit on the GPU. Windows and WSL keep them in host memory."""

    @property
    def reserved_bytes(self) -> int:
        """The bytes that PyTorch has reserved: allocated plus cached."""
        return self.allocated_bytes + self.cached_bytes


def account_of(message: Message) -> Account | None:
    """Return how a GPU's memory is divided according to an error message, or None if the message lacks figures."""
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
        # A few bytes from rounding do not indicate another process, or more than the listed ones.
        if 0 < others - listed <= _ROUNDING_BYTES and others < CONTEXT_BYTES // 2:
            outside, others = rest - listed, listed
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


# In a container, the driver knows the failing process by an ID that PyTorch does not have. The process is recognized in
# two ways. Without it, too little memory would be used to hold PyTorch's reserved memory; or its memory exceeds
# PyTorch's by no more than a context.
def _own(message: Message, reserved_bytes: int, used_bytes: int) -> OtherProcess | None:
    if message.process_bytes is not None or not reserved_bytes:
        return None
    large = [process for process in message.other_processes if process.used_bytes + _ROUNDING_BYTES >= reserved_bytes]
    needed = [process for process in large if used_bytes - process.used_bytes + _ROUNDING_BYTES < reserved_bytes]
    if len(needed) == 1:
        return needed[0]
    fitting = [process for process in large if process.used_bytes - reserved_bytes <= CONTEXT_BYTES]
    return min(fitting, key=lambda process: process.used_bytes, default=None)
