"""Explains a request that failed because memory outside PyTorch's allocator was in use."""

from typing import Final

from ullage.base.units import GIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.account import CONTEXT_BYTES, Account
from ullage.explaining.analysis.text.vendor import vendor_of
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.message import Message

_MOST_NAMED: Final = 3  # the number of other processes that are listed by ID
NOTABLE_ONE_IN: Final = 10
"""1 / 10 of the GPU's memory is the least use by other processes that deserves a verdict."""
_LEAST_OTHERS_BYTES: Final = GIB
"""The memory that a desktop may hold on a GPU. Less does not count as another process that causes a failure."""


def judge_elsewhere(
    message: Message, account: Account, requested: int, libraries: int, *, most: bool
) -> TextVerdict | None:
    """Return the verdict if memory outside PyTorch's allocator is the reason. Otherwise, None.

    Args:
        message: the message.
        account: its completed figures.
        requested: the requested bytes.
        libraries: the most bytes that libraries outside PyTorch's allocator normally hold.
        most: whether that memory must exceed PyTorch's own.
    """
    vendor = vendor_of(message.backend)
    missing = requested - account.free_bytes
    notable = max(account.total_bytes // NOTABLE_ONE_IN, _LEAST_OTHERS_BYTES)
    least = max(account.reserved_bytes, notable) if most else notable
    unnamed = max(0, account.unnamed_bytes - CONTEXT_BYTES // 2)
    if account.others_bytes >= max(missing, least):
        return _of_others(
            f"Other processes hold {text_of_bytes(account.others_bytes)} of the GPU{numbers_of(message, account)}. "
            f"Without them, {text_of_bytes(account.free_bytes + account.others_bytes)} would be free for the "
            f"{text_of_bytes(requested)} requested.",
            f"end the other processes ({vendor.list_processes} lists them), or use another {vendor.device} "
            f"({vendor.select_device})",
            account.others_bytes,
            account,
        )
    if account.outside_bytes >= max(missing, least, libraries):
        return _of_others(
            f"This process holds {text_of_bytes(account.outside_bytes)} outside of PyTorch's allocator, which itself "
            f"has {text_of_bytes(account.reserved_bytes)}: other libraries, NCCL, or another framework.",
            "limit the other library's memory, or remove the library",
            account.outside_bytes,
            account,
            cause=Cause.DISGUISED,
        )
    if unnamed >= max(missing, least):
        return _of_others(
            f"{text_of_bytes(account.unnamed_bytes)} of the GPU are used outside of PyTorch, which has "
            f"{text_of_bytes(account.reserved_bytes)}: by other processes, or by other libraries in this process; the "
            "message does not say which.",
            f"list the {vendor.device}'s processes with {vendor.list_processes}, and end them or use another "
            f"{vendor.device} ({vendor.select_device})",
            account.unnamed_bytes,
            account,
            is_sure=False,
        )
    return None


def numbers_of(message: Message, account: Account) -> str:
    """Return the IDs of the other processes with their memory, as a part of a sentence. It is empty without any."""
    listed = [process for process in message.other_processes if process.number != account.own_number]
    listed.sort(key=lambda process: -process.used_bytes)
    named = [f"{process.number} ({text_of_bytes(process.used_bytes)})" for process in listed[:_MOST_NAMED]]
    named += [f"{len(listed) - _MOST_NAMED} more"] if len(listed) > _MOST_NAMED else []
    return f" (process {', '.join(named)})" if named else ""


def _of_others(
    sentence: str,
    action: str,
    size: int,
    account: Account,
    *,
    cause: Cause = Cause.OTHER_PROCESS,
    is_sure: bool = True,
) -> TextVerdict:
    return TextVerdict(
        cause=cause,
        is_sure=is_sure,
        sentence=sentence,
        remedies=(
            estimate(action, f"{text_of_bytes(account.free_bytes)} free + {text_of_bytes(size)}"),
            estimate(
                "if the others have to stay: less memory in this program (a smaller input, batch or model)",
                f"it has {text_of_bytes(account.reserved_bytes)} itself",
            ),
        ),
    )


def judge_unified(message: Message, account: Account) -> TextVerdict | None:
    """Return the verdict if most memory in use on a machine with unified memory is not PyTorch's. Otherwise, None."""
    rest = account.others_bytes + account.unnamed_bytes
    if rest < account.total_bytes // NOTABLE_ONE_IN or account.free_bytes >= (message.requested_bytes or 0):
        return None
    return TextVerdict(
        cause=Cause.UNIFIED_MEMORY,
        sentence=(
            f"CPU and GPU use the same memory of {text_of_bytes(account.total_bytes)}: PyTorch held "
            f"{text_of_bytes(account.reserved_bytes)} of it, and {text_of_bytes(rest)} were used by the system, its "
            "page cache and programs."
        ),
        remedies=(
            estimate(
                "drop the page cache (sync; echo 3 | sudo tee /proc/sys/vm/drop_caches), and end other programs",
                "files that were read, such as checkpoints, stay in the page cache; free -h shows it",
            ),
            estimate("a smaller or quantized model, or a lower gpu_memory_utilization", "leaves memory for the system"),
        ),
    )
