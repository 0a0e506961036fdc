"""Explains a request that failed because the GPU was full, and the advice that follows."""

from collections.abc import Iterator
from typing import Final

from ullage.base.units import GIB, TIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.remedy import Remedy
from ullage.explaining.analysis.text.account import CONTEXT_BYTES, Account
from ullage.explaining.analysis.text.actions import Shortage, actions_for, generic_actions, one_tensor
from ullage.explaining.analysis.text.allocator.elsewhere import NOTABLE_ONE_IN
from ullage.explaining.analysis.text.phase import FailurePhase
from ullage.explaining.analysis.text.situation import Situation
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.message import Message

_GPU_SIZES: Final = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 141, 180, 192, 288)
_USABLE: Final = 0.97
"""The part of a GPU's nominal memory that programs can use."""


def actions_of(
    message: Message, situation: Situation, requested: int, missing: int, reason: str = ""
) -> Iterator[Remedy]:
    """Yield the advice that follows from what the program was doing."""
    shortage = Shortage(
        requested_bytes=requested,
        missing_bytes=missing,
        allocated_bytes=message.allocated_bytes or 0,
        total_bytes=message.total_bytes,
        cached_bytes=message.unallocated_bytes,
        reason=reason,
    )
    return actions_for(situation, shortage)


def judge_full(
    message: Message, account: Account | None, situation: Situation, requested: int, free: int
) -> TextVerdict:
    """Return the verdict on a request that is larger than the free and cached memory together."""
    allocated, cached = message.allocated_bytes, message.unallocated_bytes
    missing = requested - free - (cached or 0)
    if allocated is None:
        of = f" of {text_of_bytes(message.total_bytes)}" if message.total_bytes is not None else ""
        return TextVerdict(
            cause=Cause.TRULY_FULL if cached is not None else Cause.CANNOT_TELL,
            likely=Cause.OTHER_PROCESS if _are_several(message) else Cause.TRULY_FULL,
            sentence=(
                f"GPU memory ran out: {text_of_bytes(requested)} were requested and {text_of_bytes(free)}{of} were "
                f"free. {_holder(message)}"
            ),
            remedies=tuple(generic_actions(situation, "a guess: the message is cut")),
            notes=("give the whole message: the rest has the memory that PyTorch and other processes hold",),
        )
    even = f"even after releasing all cached memory, {text_of_bytes(missing)} are missing" if cached is not None else ""
    total = f" of {text_of_bytes(message.total_bytes)}" if message.total_bytes else ""
    is_outside = account is not None and account.outside_bytes >= CONTEXT_BYTES and account.outside_bytes >= missing
    outside = (
        f" This process uses {text_of_bytes(account.outside_bytes)} outside of PyTorch."
        if account is not None and is_outside
        else ""
    )
    notes = []
    if message.private_pools_bytes:
        notes.append(
            f"{text_of_bytes(message.private_pools_bytes)} belong to CUDA graphs or memory pools, which alone can use "
            "them"
        )
    remedies = list(actions_of(message, situation, requested, missing))
    if message.total_bytes is not None:
        # If some of PyTorch's memory was not on the GPU, all of it and the request must fit on the GPU.
        is_spilt = account is not None and account.spilt_bytes
        on_gpu, more = (allocated, requested) if is_spilt else (message.total_bytes, missing)
        remedies += _larger_gpu(situation, message.total_bytes, on_gpu, more)
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"{text_of_bytes(allocated)}{total} were allocated when a request for {text_of_bytes(requested)} failed "
            f"with {text_of_bytes(free)} free{'; ' + even if even else ''}.{outside}"
        ),
        remedies=tuple(remedies),
        notes=tuple(notes),
    )


def judge_spilt(message: Message, account: Account, situation: Situation, requested: int) -> TextVerdict:
    """Return the verdict on a full GPU if a part of PyTorch's memory is not on the GPU (Windows and WSL)."""
    missing = account.allocated_bytes + requested - account.total_bytes
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"PyTorch had {text_of_bytes(account.allocated_bytes)} allocated, more than fits on the GPU with "
            f"{text_of_bytes(account.total_bytes)}, when a request for {text_of_bytes(requested)} failed."
        ),
        remedies=(
            *actions_of(message, situation, requested, missing),
            *_larger_gpu(situation, account.total_bytes, account.allocated_bytes, requested),
        ),
    )


def _are_several(message: Message) -> bool:
    """Return whether processes other than the largest one, which may be the failing one, hold a notable part."""
    used = sorted(process.used_bytes for process in message.other_processes)
    return message.total_bytes is not None and sum(used[:-1]) * NOTABLE_ONE_IN >= message.total_bytes


def _holder(message: Message) -> str:
    """Return a sentence about who held the memory, for a message that is cut before PyTorch's own figures."""
    if message.process_bytes is not None:
        return f"This process held {text_of_bytes(message.process_bytes)}."
    if "this process has" in message.text:
        return "The message is cut where it says how much this process held."
    if message.other_processes:
        held = ", ".join(f"{each.number} ({text_of_bytes(each.used_bytes)})" for each in message.other_processes[:4])
        return f"Memory was held by process {held}; one of them may be this one."
    return "The message does not say who held the rest."


def _larger_gpu(situation: Situation, total: int, on_gpu: int, more: int) -> Iterator[Remedy]:
    """Yield the next usual size of a GPU that has the needed bytes and is larger than the present GPU, if any."""
    if situation.phase in (FailurePhase.LOADING, FailurePhase.OPTIMIZER, FailurePhase.PREPARING):
        return  # the rest of the weights or states would need more
    own = next((size for size in _GPU_SIZES if size * GIB >= total), _GPU_SIZES[-1])
    larger = next((size for size in _GPU_SIZES if size > own and _USABLE * size * GIB >= on_gpu + more), None)
    if larger is not None:
        yield estimate(
            f"a GPU with {larger} GiB or more",
            f"at least {text_of_bytes(on_gpu)} + {text_of_bytes(more)}; later requests may need more",
        )


def judge_larger_than_the_gpu(message: Message, situation: Situation, requested: int, total: int) -> TextVerdict:
    """Return the verdict on a single request that is larger than the whole GPU."""
    usable = total
    if message.free_bytes is not None:
        usable = min(total, message.free_bytes + (message.unallocated_bytes or 0))
    parts = -(-requested // usable) if usable else 0
    of = text_of_bytes(usable) if usable == total else f"{text_of_bytes(usable)} free or cached"
    shrink = f"make the tensor at most 1/{parts} as large" if parts else "make the tensor smaller"
    split = estimate(
        f"{shrink}: a smaller batch or image, shorter sequences, fewer frames, memory-efficient attention, or tiling",
        f"{text_of_bytes(requested)} / {of}",
    )
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        likely=Cause.BOGUS_SIZE if requested >= TIB else None,
        sentence=(
            f"A single request exceeds the memory of the whole GPU: {text_of_bytes(requested)} were requested at "
            f"once, and the GPU has {text_of_bytes(total)}."
        ),
        remedies=(split, one_tensor(situation)),
        notes=("the usual reason is a tensor with an unexpected shape (a broadcast, an attention matrix)",),
    )
