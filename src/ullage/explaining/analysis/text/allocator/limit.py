"""Explains a request that was refused by a limit, although the GPU had free memory."""

from typing import Final

from ullage.base.units import MIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.remedy import Remedy
from ullage.explaining.analysis.text.account import Account
from ullage.explaining.analysis.text.allocator.elsewhere import judge_elsewhere
from ullage.explaining.analysis.text.allocator.fragmented import is_from_windows
from ullage.explaining.analysis.text.allocator.full import actions_of
from ullage.explaining.analysis.text.situation import Situation
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.message import Message

ROUNDING_BYTES: Final = 16 * MIB
"""A tolerance for figures in a message, each of which is rounded to a hundredth of its unit."""
_NEARLY_FULL: Final = 0.04
"""The free part of a GPU's memory below which the GPU counts as full."""


def judge_limit(message: Message) -> TextVerdict | None:
    """Return the verdict if a limit of PyTorch (`set_per_process_memory_fraction`) refused the request, or None."""
    held = message.reserved_bytes if message.reserved_bytes is not None else message.allocated_bytes
    requested, allowed, free = message.requested_bytes, message.allowed_bytes, message.free_bytes
    if allowed is None or held is None or requested is None or held + requested + ROUNDING_BYTES <= allowed:
        return None
    if (free is not None and free < requested) or (message.total_bytes is not None and allowed >= message.total_bytes):
        return None
    needed = held + requested
    remedies: list[Remedy] = []
    if message.total_bytes is not None and needed <= message.total_bytes:
        share = -(-100 * needed // message.total_bytes)
        remedies.append(
            estimate(
                f"torch.cuda.set_per_process_memory_fraction({share / 100:.2f}) or more",
                f"({text_of_bytes(held)} + {text_of_bytes(requested)}) / {text_of_bytes(message.total_bytes)}",
            )
        )
    room = f", while {text_of_bytes(free)} were free on the GPU" if free is not None else ""
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            "A limit refused the request; the GPU's memory size is not the cause: PyTorch may reserve "
            f"{text_of_bytes(allowed)}, had reserved {text_of_bytes(held)} and requested {text_of_bytes(requested)} "
            f"more{room} (per_process_memory_fraction)."
        ),
        remedies=tuple(remedies),
    )


def judge_preempted(message: Message) -> TextVerdict:
    """Return the explanation of an allocation that PyTorch refused before asking the driver (`throw_on_cudamalloc_oom`,
    torch 2.12).
    """
    held, allowed, requested = message.reserved_bytes, message.allowed_bytes, message.requested_bytes
    if (limit := judge_limit(message)) is not None:
        return limit
    asked = text_of_bytes(requested) if requested is not None else "a request"
    if held is not None and allowed is not None and message.total_bytes is not None and allowed >= message.total_bytes:
        return TextVerdict(
            cause=Cause.TRULY_FULL,
            sentence=(
                f"PyTorch refused the request without calling the driver: it held {text_of_bytes(held)} of the GPU's "
                f"{text_of_bytes(message.total_bytes)} and requested {asked} more (throw_on_cudamalloc_oom is on)."
            ),
        )
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=f"A limit refused the request; the GPU's memory size is not the cause: {asked} would have exceeded "
        "per_process_memory_fraction, so the driver was not called.",
        notes=("give the whole log: the warning before the error has the figures (Preemptively rejecting allocation)",),
    )


def judge_intel_limit(requested: int) -> TextVerdict:
    """Return the verdict on a single request that is larger than Intel's driver allows."""
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            "A limit of Intel's driver refused the request; the GPU's memory size is not the cause: "
            f"{text_of_bytes(requested)} were requested at once, and a single allocation must be smaller than 4 GiB."
        ),
        remedies=(
            estimate("UR_L0_USE_RELAXED_ALLOCATION_LIMITS=1, set before the program starts", "removes that limit"),
            estimate("compute in parts, each tensor below 4 GiB", f"{text_of_bytes(requested)} at once"),
        ),
    )


def judge_contradictory(requested: int, free: int, total: int) -> TextVerdict:
    """Return the verdict on a message whose free memory exceeds the total memory."""
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"The driver's figures contradict each other: {text_of_bytes(free)} were free on a GPU with "
            f"{text_of_bytes(total)} in total, but a request for {text_of_bytes(requested)} was refused. The figures "
            "for free and for total memory do not describe the same memory."
        ),
        notes=(
            "an APU uses a fixed part of host memory for the GPU (in the BIOS: UMA frame buffer) and borrows more "
            "(amdgpu's GTT); the free memory includes both",
        ),
    )


def judge_free_and_refused(
    message: Message, account: Account | None, situation: Situation, requested: int, free: int, libraries: int
) -> TextVerdict:
    """Return the verdict on a request that was refused although more memory was free than requested."""
    had = f"{text_of_bytes(free)} were free on the GPU when {text_of_bytes(requested)} were refused"
    if message.wording == "custom_pool":
        return TextVerdict(
            cause=Cause.CANNOT_TELL, sentence=f"The memory pool's own allocator refused the request: {had}."
        )
    if account is not None and (account.unnamed_bytes + account.others_bytes) * 2 >= account.total_bytes:
        other = judge_elsewhere(message, account, requested, libraries, most=False)
        if other is not None:
            return other
    if message.is_expandable:
        return TextVerdict(
            cause=Cause.ADDRESS_SPACE,
            sentence=f"Address space may have run out, not memory: {had}, and expandable segments were on.",
            notes=("a system limit (ulimit -v, a container's limit) causes the same error",),
        )
    if message.total_bytes is not None and free < _NEARLY_FULL * message.total_bytes:
        if account is not None and (
            (other := judge_elsewhere(message, account, requested, libraries, most=False)) is not None
        ):
            return other
        share = 100 * (1 - free / message.total_bytes)
        return TextVerdict(
            cause=Cause.TRULY_FULL,
            sentence=(
                f"The GPU was full: {share:.1f} % of its {text_of_bytes(message.total_bytes)} were in use. The "
                f"driver refused {text_of_bytes(requested)}, although {text_of_bytes(free)} were free, which happens "
                "on a nearly full GPU."
            ),
            remedies=tuple(actions_of(message, situation, requested, 0, f"{share:.1f} % were in use")),
        )
    is_windows = is_from_windows(message, situation)
    return TextVerdict(
        cause=Cause.LIMIT,
        likely=Cause.COMMIT_LIMIT if is_windows else None,
        sentence=(
            f"A limit refused the request; the GPU's memory size is not the cause: {had}, so something else limits "
            "this process."
        ),
        remedies=(
            (
                estimate(
                    "a larger page file, or more host memory",
                    "the message looks like one from Windows, where each allocation on the GPU also counts against "
                    "the commit limit: host memory plus page file",
                ),
            )
            if is_windows
            else ()
        ),
        notes=(
            "on Windows, host memory and the page file limit GPU memory too (commit limit): make the page file larger",
            "possible limits: WSL or Windows, which provide less than the GPU has; a GPU partition (MIG, vGPU); "
            "another process that held the memory at that time; a container's limit",
        ),
    )
