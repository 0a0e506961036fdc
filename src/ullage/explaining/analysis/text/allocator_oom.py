"""The judgement of PyTorch's own out-of-memory errors, by their figures."""

from dataclasses import replace
from typing import Final

from ullage.base.units import GIB, MIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause, is_full
from ullage.explaining.analysis.remedy import Remedy
from ullage.explaining.analysis.text.account import CONTEXT_BYTES, Account
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate, hold_less
from ullage.recorded.message.message import Message

_MOST_NAMED: Final = 3  # other processes that are named
_NOTABLE_ONE_IN: Final = 10  # of the card, one part in so many: what other processes hold and is worth a verdict
_ROUNDING_BYTES: Final = 16 * MIB
_INTEL_LARGEST_BYTES: Final = 4 * GIB
"""The most that Intel's driver gives out in one allocation, unless it is told otherwise."""
_OWN_VARIABLE: Final = {"NPU": "PYTORCH_NPU_ALLOC_CONF", "MUSA": "PYTORCH_MUSA_ALLOC_CONF"}


def judge_allocator(message: Message, account: Account | None, *, libraries_bytes: int = CONTEXT_BYTES) -> TextVerdict:
    """Judge a request that the allocator could not satisfy.

    Args:
        message: the message.
        account: its figures, completed.
        libraries_bytes: the most that libraries outside PyTorch's allocator hold where nothing is wrong.
    """
    verdict = _judge(message, account, libraries_bytes)
    if account is None:
        return verdict
    notes = []
    if account.spilt_bytes:
        notes.append(_spilt(account))
    if (
        verdict.cause in (Cause.FRAGMENTED, Cause.TRULY_FULL)
        and account.others_bytes >= account.total_bytes // _NOTABLE_ONE_IN
    ):
        notes.append(
            f"other processes hold {text_of_bytes(account.others_bytes)} of the card{_numbers(message, account)}: "
            "ending them, or another card, would have helped too"
        )
    return replace(verdict, notes=(*notes, *verdict.notes))


def _spilt(account: Account) -> str:
    return (
        f"PyTorch counts {text_of_bytes(account.spilt_bytes)} more than the card has in use: Windows and WSL keep that "
        "in the machine's memory (shared GPU memory), which is slow; on Linux it is memory that was given back without "
        "PyTorch's knowledge (vLLM's sleep mode)"
    )


def _judge(message: Message, account: Account | None, libraries: int) -> TextVerdict:
    requested, free, cached = message.requested_bytes, message.free_bytes, message.unallocated_bytes
    if message.wording == "mps":
        return _apple(message)
    if requested is None:
        return _bare(message)
    if (limit := _limit(message)) is not None:
        return limit
    if free is not None and message.total_bytes is not None and free > message.total_bytes:
        return _contradictory(requested, free, message.total_bytes)
    if message.backend == "XPU" and requested >= _INTEL_LARGEST_BYTES and _held(message) + requested <= _room(message):
        return _intel_largest(requested)
    if message.total_bytes is not None and requested > message.total_bytes:
        return _larger_than_the_card(message, requested, message.total_bytes)
    if free is None:
        return _without_free(message, requested)
    if free > requested + _ROUNDING_BYTES:
        return _free_and_refused(message, requested, free)
    if account is not None and (other := _elsewhere(message, account, requested, libraries, most=True)) is not None:
        return other
    if cached is not None and free + cached >= requested:
        return _in_pieces(message, requested, free, cached)
    if account is not None and (other := _elsewhere(message, account, requested, libraries, most=False)) is not None:
        return other
    return _full(message, account, requested, free)


def _bare(message: Message) -> TextVerdict:
    asked = f", {text_of_bytes(message.requested_bytes)} of it asked for" if message.requested_bytes else ""
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=f"Memory ran out on the card{asked}; the text has no figures that say why.",
        notes=("give the whole message: it goes on with what was allocated, what was free and what the card has",),
    )


def _held(message: Message) -> int:
    return message.reserved_bytes or message.allocated_bytes or 0


def _room(message: Message) -> int:
    """The most that there may have been: what was free and cached, else the card."""
    if message.free_bytes is not None:
        return _held(message) + message.free_bytes
    return message.total_bytes or 0


def _without_free(message: Message, requested: int) -> TextVerdict:
    """Judge a text that does not say what was free on the card."""
    total, held = message.total_bytes, _held(message)
    if total is None:
        return _bare(message)
    if message.allocated_bytes is not None and message.allocated_bytes + requested > total:
        return TextVerdict(
            cause=Cause.TRULY_FULL,
            sentence=(
                f"Memory was truly full: PyTorch had {text_of_bytes(message.allocated_bytes)} of "
                f"{text_of_bytes(total)} allocated when {text_of_bytes(requested)} more were asked for."
            ),
            remedies=(hold_less(message.allocated_bytes, message.allocated_bytes + requested - total),),
        )
    had = f", and PyTorch itself held {text_of_bytes(held)}" if message.allocated_bytes is not None else ""
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=(
            f"{text_of_bytes(requested)} were refused on a card of {text_of_bytes(total)}{had}; the text does not say "
            "what was free."
        ),
        notes=(
            "look for other programs on the card; for WSL or Windows, which give out less than the card has; and for "
            "the rest of the message, if it was cut",
        ),
    )


def _contradictory(requested: int, free: int, total: int) -> TextVerdict:
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"The driver's figures contradict each other: {text_of_bytes(free)} free on a card of "
            f"{text_of_bytes(total)}, and {text_of_bytes(requested)} refused; they are of two memories."
        ),
        notes=(
            "a chip that shares the machine's memory (an APU) has a fixed part for the card (in the BIOS: UMA frame "
            "buffer) and borrows the rest (amdgpu's GTT); the free memory is of both",
        ),
    )


def _intel_largest(requested: int) -> TextVerdict:
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"A limit of Intel's driver, not the card: {text_of_bytes(requested)} were asked for at once, and one "
            "allocation may be 4 GiB at most."
        ),
        remedies=(
            estimate("UR_L0_USE_RELAXED_ALLOCATION_LIMITS=1, set before the program starts", "lifts that limit"),
            estimate("compute in parts, each tensor below 4 GiB", f"{text_of_bytes(requested)} at once"),
        ),
    )


def _limit(message: Message) -> TextVerdict | None:
    """Return the verdict for a limit of the allocator below the card's size; None where there was none."""
    held = message.reserved_bytes if message.reserved_bytes is not None else message.allocated_bytes
    requested, allowed, free = message.requested_bytes, message.allowed_bytes, message.free_bytes
    if allowed is None or held is None or requested is None or held + requested + _ROUNDING_BYTES <= allowed:
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
    room = f" and {text_of_bytes(free)} were free on the card" if free is not None else ""
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"A limit, not the card: PyTorch may hold {text_of_bytes(allowed)}, held {text_of_bytes(held)} and asked "
            f"for {text_of_bytes(requested)} more{room} (per_process_memory_fraction)."
        ),
        remedies=tuple(remedies),
    )


def _larger_than_the_card(message: Message, requested: int, total: int) -> TextVerdict:
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"One request is larger than the whole card: {text_of_bytes(requested)} were asked for at once, and the "
            f"card has {text_of_bytes(total)}."
        ),
        remedies=(
            estimate(
                f"make the tensor at most 1/{-(-requested // total)} as large, or compute it in parts",
                f"{text_of_bytes(requested)} / {text_of_bytes(total)}",
            ),
        ),
        notes=("a tensor of unexpected shape (a broadcast, an attention matrix) is the usual reason",),
    )


def _free_and_refused(message: Message, requested: int, free: int) -> TextVerdict:
    had = f"{text_of_bytes(free)} were free on the card when {text_of_bytes(requested)} were refused"
    if message.wording == "custom_pool":
        return TextVerdict(cause=Cause.CANNOT_TELL, sentence=f"The memory pool's own allocator refused: {had}.")
    if message.is_expandable:
        return TextVerdict(
            cause=Cause.ADDRESS_SPACE,
            sentence=f"Address space may have run out, not memory: {had}, with expandable segments on.",
            notes=("a limit of the system (ulimit -v, a container) gives the same error",),
        )
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=f"Not the card's size: {had}, so something else limits this process.",
        notes=(
            "look for: WSL or Windows, which give out less than the card has; a part of a card (MIG, vGPU); another "
            "process that had the memory at that moment; a limit of the container",
        ),
    )


def _elsewhere(message: Message, account: Account, requested: int, libraries: int, *, most: bool) -> TextVerdict | None:
    """Return the verdict where memory outside PyTorch would have sufficed.

    With `most`, only where there is more of it than PyTorch has."""
    missing = requested - account.free_bytes
    notable = account.total_bytes // _NOTABLE_ONE_IN
    least = max(account.reserved_bytes, notable) if most else notable
    unnamed = max(0, account.unnamed_bytes - CONTEXT_BYTES // 2)
    if account.others_bytes >= max(missing, least):
        return _of_others(
            f"Other processes hold {text_of_bytes(account.others_bytes)} of the card{_numbers(message, account)}: "
            f"without them {text_of_bytes(account.free_bytes + account.others_bytes)} would be free, and "
            f"{text_of_bytes(requested)} were asked for.",
            "end the other processes, or use another card (CUDA_VISIBLE_DEVICES)",
            account.others_bytes,
            account,
        )
    if account.outside_bytes >= max(missing, least, libraries):
        return _of_others(
            f"This process holds {text_of_bytes(account.outside_bytes)} outside of PyTorch's allocator, which itself "
            f"has {text_of_bytes(account.reserved_bytes)}: other libraries, NCCL, or another framework.",
            "limit or leave out the other library",
            account.outside_bytes,
            account,
        )
    if unnamed >= max(missing, least):
        return _of_others(
            f"{text_of_bytes(account.unnamed_bytes)} of the card are used and are not PyTorch's, which has "
            f"{text_of_bytes(account.reserved_bytes)}: other processes, or other libraries in this one; the text does "
            "not say which.",
            "see with nvidia-smi who is on the card, and end it or use another card",
            account.unnamed_bytes,
            account,
        )
    return None


def _numbers(message: Message, account: Account) -> str:
    """Return the numbers of other processes, the largest first, in brackets; nothing where none is listed."""
    listed = [process for process in message.other_processes if process.number != account.own_number]
    listed.sort(key=lambda process: -process.used_bytes)
    named = [f"{process.number} ({text_of_bytes(process.used_bytes)})" for process in listed[:_MOST_NAMED]]
    named += [f"{len(listed) - _MOST_NAMED} more"] if len(listed) > _MOST_NAMED else []
    return f" (process {', '.join(named)})" if named else ""


def _of_others(sentence: str, action: str, size: int, account: Account) -> TextVerdict:
    return TextVerdict(
        cause=Cause.OTHER_PROCESS,
        sentence=sentence,
        remedies=(estimate(action, f"{text_of_bytes(account.free_bytes)} free + {text_of_bytes(size)}"),),
    )


def _in_pieces(message: Message, requested: int, free: int, cached: int) -> TextVerdict:
    allocated = message.allocated_bytes
    usable = free + cached
    sums = f"{text_of_bytes(free)} free on the card and {text_of_bytes(cached)} cached by PyTorch"
    variable = _OWN_VARIABLE.get(message.backend or "")
    line = f"export {variable}=expandable_segments:True; " if variable else ""
    expandable: tuple[Remedy, ...] = (
        ()
        if message.is_expandable
        else (
            estimate(
                "expandable_segments:True",
                f"{line}if every cached byte could be used: {text_of_bytes(free)} + {text_of_bytes(cached)} - "
                f"{text_of_bytes(requested)} = {text_of_bytes(usable - requested)} to spare",
            ),
        )
    )
    if allocated is not None and is_full(allocated + usable, usable - requested):
        return TextVerdict(
            cause=Cause.TRULY_FULL,
            sentence=(
                f"Memory was truly full: with {text_of_bytes(allocated)} allocated, {text_of_bytes(requested)} more "
                f"would just have fitted if packed without a gap ({sums}), with "
                f"{text_of_bytes(usable - requested)} left."
            ),
            remedies=(hold_less(allocated, requested - free), *expandable),
        )
    notes = ["the failure shows that no piece was large enough; a snapshot shows which tensors lie between the pieces"]
    if message.wording in ("cached", "reserved_in_total") and message.backend not in _OWN_VARIABLE:
        notes.append("the text is of torch 2.0 or older: expandable_segments came with torch 2.1")
    return TextVerdict(
        cause=Cause.FRAGMENTED,
        sentence=(
            f"Memory was there, but not in one piece: {text_of_bytes(requested)} were asked for, with {sums}; the "
            "cached memory is cut up by tensors that are alive."
        ),
        remedies=expandable,
        notes=tuple(notes),
    )


def _full(message: Message, account: Account | None, requested: int, free: int) -> TextVerdict:
    allocated, cached = message.allocated_bytes, message.unallocated_bytes
    missing = requested - free - (cached or 0)
    if allocated is None:
        return TextVerdict(
            cause=Cause.TRULY_FULL if cached is not None else Cause.CANNOT_TELL,
            sentence=f"Memory ran out: {text_of_bytes(requested)} were asked for and {text_of_bytes(free)} were free.",
        )
    even = f"even with every cached byte, {text_of_bytes(missing)} are missing" if cached is not None else ""
    total = f" of {text_of_bytes(message.total_bytes)}" if message.total_bytes else ""
    notes = []
    if message.private_pools_bytes:
        notes.append(
            f"{text_of_bytes(message.private_pools_bytes)} belong to CUDA graphs or memory pools; nothing else can "
            "use them"
        )
    remedies = [hold_less(allocated, missing)]
    if message.total_bytes is not None:
        # Where some of it was not on the card, all of it and the request have to be.
        is_spilt = account is not None and account.spilt_bytes
        on_card, more = (allocated, requested) if is_spilt else (message.total_bytes, missing)
        needed = -(-(on_card + more) // GIB)
        arithmetic = f"{text_of_bytes(on_card)} + {text_of_bytes(more)}"
        remedies.append(estimate(f"a card of {needed} GiB or more", arithmetic))
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"Memory was truly full: {text_of_bytes(allocated)}{total} were allocated when {text_of_bytes(requested)} "
            f"more were asked for with {text_of_bytes(free)} free{'; ' + even if even else ''}."
        ),
        remedies=tuple(remedies),
        notes=tuple(notes),
    )


def _apple(message: Message) -> TextVerdict:
    if message.requested_bytes is None or message.allowed_bytes is None or message.allocated_bytes is None:
        return _bare(message)
    other = message.other_allocations_bytes or 0
    missing = message.requested_bytes + message.allocated_bytes + other - message.allowed_bytes
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"Memory was truly full: PyTorch held {text_of_bytes(message.allocated_bytes)} and other Metal allocations "
            f"{text_of_bytes(other)} of the {text_of_bytes(message.allowed_bytes)} that are allowed, when "
            f"{text_of_bytes(message.requested_bytes)} more were asked for."
        ),
        remedies=(
            hold_less(message.allocated_bytes, missing),
            estimate(
                "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0, set before the program starts",
                "lifts the limit; the memory is the machine's, and macOS then swaps or ends programs",
            ),
        ),
        notes=("other Metal allocations are of other libraries and caches in this process, and of the driver",),
    )


def judge_preempted(message: Message) -> TextVerdict:
    """Judge a request that was refused before the driver was asked (throw_on_cudamalloc_oom, torch 2.12)."""
    held, allowed, requested = message.reserved_bytes, message.allowed_bytes, message.requested_bytes
    if (limit := _limit(message)) is not None:
        return limit
    asked = text_of_bytes(requested) if requested is not None else "a request"
    if held is not None and allowed is not None and message.total_bytes is not None and allowed >= message.total_bytes:
        return TextVerdict(
            cause=Cause.TRULY_FULL,
            sentence=(
                f"Refused before the driver was asked: PyTorch held {text_of_bytes(held)} of the card's "
                f"{text_of_bytes(message.total_bytes)} and asked for {asked} more (throw_on_cudamalloc_oom is on)."
            ),
        )
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=f"A limit, not the card: {asked} would have passed per_process_memory_fraction, so the driver was not "
        "asked.",
        notes=("the warning above the error has the figures (Preemptively rejecting allocation): give the whole log",),
    )
