"""Explains PyTorch's own out-of-memory errors from the figures in the message."""

from dataclasses import replace
from typing import Final

from ullage.base.units import GIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.account import CONTEXT_BYTES, Account, is_unified
from ullage.explaining.analysis.text.allocator.apple import judge_apple, judge_metal_buffer
from ullage.explaining.analysis.text.allocator.elsewhere import (
    NOTABLE_ONE_IN,
    judge_elsewhere,
    judge_unified,
    numbers_of,
)
from ullage.explaining.analysis.text.allocator.fragmented import REQUEST_OVER_CACHE, judge_in_pieces
from ullage.explaining.analysis.text.allocator.full import judge_full, judge_larger_than_the_gpu, judge_spilt
from ullage.explaining.analysis.text.allocator.limit import (
    ROUNDING_BYTES,
    judge_contradictory,
    judge_free_and_refused,
    judge_intel_limit,
    judge_limit,
)
from ullage.explaining.analysis.text.allocator.no_figures import held_bytes, judge_bare, judge_without_free
from ullage.explaining.analysis.text.situation import Situation
from ullage.explaining.analysis.text.verdict import TextVerdict
from ullage.recorded.message.message import Message

_INTEL_LARGEST_BYTES: Final = 4 * GIB
"""The largest single allocation that Intel's driver allows by default, in bytes."""
_SHARED_GPU: Final = 0.3
"""The part of a GPU's memory from which other processes, not fragmentation, are the first reason of a failure."""


def judge_allocator(
    message: Message,
    account: Account | None,
    situation: Situation,
    *,
    libraries_bytes: int = CONTEXT_BYTES,
    is_shared: bool = False,
) -> TextVerdict:
    """Return the verdict on a request that PyTorch's allocator could not satisfy.

    Args:
        message: the message.
        account: the completed figures of the message.
        libraries_bytes: the most memory that libraries outside PyTorch's allocator normally hold.
        is_shared: whether the text names a machine whose GPU uses the memory of the CPU.
    """
    if (is_shared or is_unified(message.total_bytes)) and account is not None:
        unified = judge_unified(message, account)
        if unified is not None:
            return unified
    verdict = _judge(message, account, situation, libraries_bytes)
    if account is None:
        return verdict
    notes = []
    if account.spilt_bytes:
        notes.append(_spilt(account))
    if (
        verdict.cause in (Cause.FRAGMENTED, Cause.TRULY_FULL)
        and account.others_bytes >= account.total_bytes // NOTABLE_ONE_IN
    ):
        notes.append(
            f"other processes hold {text_of_bytes(account.others_bytes)} of the GPU{numbers_of(message, account)}: "
            "ending them or using another GPU would also have helped"
        )
    return replace(verdict, notes=(*notes, *verdict.notes))


def _spilt(account: Account) -> str:
    return (
        f"PyTorch counts {text_of_bytes(account.spilt_bytes)} more than are used on the GPU: Windows and WSL keep such "
        "memory in the host (shared GPU memory), which is slow; on Linux it is memory that was released without "
        "PyTorch's knowledge (vLLM's sleep mode)"
    )


def _judge(message: Message, account: Account | None, situation: Situation, libraries: int) -> TextVerdict:
    requested, free, cached = message.requested_bytes, message.free_bytes, message.unallocated_bytes
    if message.wording == "mps":
        return judge_apple(message, situation)
    if message.wording == "metal_buffer":
        return judge_metal_buffer(message, situation)
    if requested is None:
        return judge_bare(message, situation)
    if (limit := judge_limit(message)) is not None:
        return limit
    if free is not None and message.total_bytes is not None and free > message.total_bytes:
        return judge_contradictory(requested, free, message.total_bytes)
    if (
        message.backend == "XPU"
        and requested >= _INTEL_LARGEST_BYTES
        and held_bytes(message) + requested <= _room(message)
    ):
        return judge_intel_limit(requested)
    if message.total_bytes is not None and requested > message.total_bytes:
        return judge_larger_than_the_gpu(message, situation, requested, message.total_bytes)
    if free is None:
        return judge_without_free(message, situation, requested)
    if free > requested + ROUNDING_BYTES:
        return judge_free_and_refused(message, account, situation, requested, free, libraries)
    if (
        account is not None
        and (other := judge_elsewhere(message, account, requested, libraries, most=True)) is not None
    ):
        return other
    is_shared = account is not None and account.others_bytes >= _SHARED_GPU * account.total_bytes
    is_cache_large = (cached or 0) >= REQUEST_OVER_CACHE * requested
    if account is not None and is_shared and not is_cache_large and account.others_bytes >= requested - free:
        return judge_elsewhere(message, account, requested, libraries, most=False) or judge_full(
            message, account, situation, requested, free
        )
    if account is not None and account.spilt_bytes and (message.allocated_bytes or 0) + requested > account.total_bytes:
        return judge_spilt(message, account, situation, requested)
    if cached is not None and free + cached >= requested:
        return judge_in_pieces(message, situation, requested, free, cached)
    if (
        account is not None
        and (other := judge_elsewhere(message, account, requested, libraries, most=False)) is not None
    ):
        return other
    return judge_full(message, account, situation, requested, free)


def _room(message: Message) -> int:
    if message.free_bytes is not None:
        return held_bytes(message) + message.free_bytes
    return message.total_bytes or 0
