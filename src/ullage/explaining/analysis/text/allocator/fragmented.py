"""Explains a request that failed although free and cached memory together would have been enough."""

from collections.abc import Iterator
from typing import Final

from ullage.base.units import GIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause, is_full
from ullage.explaining.analysis.remedy import Remedy
from ullage.explaining.analysis.text.actions import generic_actions
from ullage.explaining.analysis.text.allocator.full import actions_of
from ullage.explaining.analysis.text.phase import FailurePhase
from ullage.explaining.analysis.text.situation import Situation
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.message import Message

REQUEST_OVER_CACHE: Final = 4
"""A request that is this many times larger than PyTorch's cache needs free memory, not a less fragmented cache."""
_CONSUMER_SIZES: Final = (4, 6, 8, 10, 11, 12, 16, 24, 32)
_WHOLE: Final = 0.994
"""The memory sizes of GeForce GPUs in GiB, and the part of them that a program sees under Windows, at least.

An RTX 5090 has 31.84 GiB under Windows and 31.36 GiB under Linux; an RTX 4090 has 23.99 and 23.64 GiB.
"""
_LARGE_CACHE: Final = 0.1
"""The part of a GPU's memory from which PyTorch's cache is large enough to be the reason for sure."""
_USUAL_CACHE: Final = 0.06
"""The part of a GPU's memory that PyTorch's cache usually has. A smaller cache is not the reason of a failure."""
_AMPLE_CACHE: Final = 2
_AMPLE_CACHE_BYTES: Final = 2 * GIB
"""A cache of this size, and twice as large as the request, is the reason even if it is a small part of the memory."""
_NEARLY_FULL_USABLE: Final = 0.1
"""The free and cached part of a GPU's memory below which the report calls the GPU nearly full."""
_OWN_VARIABLE: Final = {"NPU": "PYTORCH_NPU_ALLOC_CONF", "MUSA": "PYTORCH_MUSA_ALLOC_CONF"}


def judge_in_pieces(message: Message, situation: Situation, requested: int, free: int, cached: int) -> TextVerdict:
    """Return the verdict on a request that is smaller than the free and cached memory together."""
    allocated, total, usable = message.allocated_bytes, message.total_bytes, free + cached
    has_windows_paths = any("\\" in frame.file for frame in situation.frames)
    is_windows = has_windows_paths or is_from_windows(message, situation)
    is_old = message.wording in ("cached", "reserved_in_total") and message.backend not in _OWN_VARIABLE
    sums = f"{text_of_bytes(requested)} requested, {text_of_bytes(free)} free, {text_of_bytes(cached)} cached in pieces"
    expandable = tuple(_expandable(message, requested, free, cached, is_old=is_old, is_windows=is_windows))
    if allocated is not None and (
        _is_mostly_tensors(message, situation, requested, cached) or is_full(allocated + usable, usable - requested)
    ):
        is_nearly_full = total is None or usable < _NEARLY_FULL_USABLE * total
        return TextVerdict(
            cause=Cause.TRULY_FULL,
            sentence=(
                f"{'The GPU was nearly full' if is_nearly_full else 'The request was too large'}: "
                f"{text_of_bytes(allocated)} were allocated when a request for {text_of_bytes(requested)} failed; "
                f"{text_of_bytes(free)} were free, and {text_of_bytes(cached)} cached in pieces."
            ),
            remedies=(*actions_of(message, situation, requested, requested - free, sums), *expandable),
        )
    is_sure = total is not None and cached >= _LARGE_CACHE * total
    # A message that only looks like one from Windows gets the setting first if it would free a lot.
    comes_first = has_windows_paths or is_old or (is_windows and (not is_sure or _has_windows_total(message)))
    actions = tuple(generic_actions(situation, sums if comes_first else f"if expandable segments do not help: {sums}"))
    notes = ["no free piece was large enough; a snapshot shows which tensors are between the pieces"]
    if is_old:
        notes.append("this message is from torch 2.0 or older; expandable_segments requires torch 2.1")
    return TextVerdict(
        cause=Cause.FRAGMENTED,
        is_sure=is_sure,
        sentence=(
            f"The free memory was fragmented: {text_of_bytes(requested)} were requested in one piece. "
            f"{text_of_bytes(free)} were free, and {text_of_bytes(cached)} cached, which live tensors divide into "
            "smaller pieces."
        ),
        remedies=(*actions, *expandable) if comes_first else (*expandable, *actions),
        notes=tuple(notes),
    )


def _is_mostly_tensors(message: Message, situation: Situation, requested: int, cached: int) -> bool:
    """Return whether the cache is so small that tensors, not its pieces, are the reason."""
    total = message.total_bytes
    if requested >= REQUEST_OVER_CACHE * cached:
        return True
    if total is None:
        return False
    # While weights are loaded, the rest of them needs more than a small cache.
    is_loading = situation.phase is FailurePhase.LOADING and cached < _LARGE_CACHE * total
    return is_loading or cached < min(_USUAL_CACHE * total, max(_AMPLE_CACHE * requested, _AMPLE_CACHE_BYTES))


def _expandable(
    message: Message, requested: int, free: int, cached: int, *, is_old: bool, is_windows: bool
) -> Iterator[Remedy]:
    """Yield the advice to use expandable segments, unless they were on."""
    if message.is_expandable:
        return
    variable = _OWN_VARIABLE.get(message.backend or "")
    line = f"export {variable}=expandable_segments:True; " if variable else ""
    line = "needs torch 2.1 or newer, and this message is older; " if is_old else line
    line = "not on Windows; " if is_windows else line
    yield estimate(
        "expandable_segments:True",
        f"{line}if all cached memory were usable: {text_of_bytes(free)} + {text_of_bytes(cached)} - "
        f"{text_of_bytes(requested)} = {text_of_bytes(free + cached - requested)} to spare",
    )


def _has_windows_total(message: Message) -> bool:
    """Return whether the GPU has its whole nominal memory, as under Windows and WSL. Linux reserves a part of it."""
    total = message.total_bytes or 0
    return any(_WHOLE * size * GIB <= total <= size * GIB for size in _CONSUMER_SIZES)


def is_from_windows(message: Message, situation: Situation) -> bool:
    """Return whether a message is probably from Windows: by the paths, or by what PyTorch could not find out there."""
    if message.backend not in (None, "CUDA"):
        return False
    # PyTorch names the processes on the GPU only if NVML knows their memory. Under Windows it does not.
    names_nobody = message.process_bytes is None and not message.other_processes
    is_whole = message.wording == "of_which_free" and message.unallocated_bytes is not None
    if situation.frames:
        return any("\\" in frame.file for frame in situation.frames)
    return is_whole and names_nobody
