"""Explains PyTorch's own out-of-memory errors from the figures in the message."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ullage.base.units import GIB, MIB, TIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause, is_full
from ullage.explaining.analysis.remedy import Remedy
from ullage.explaining.analysis.text.account import CONTEXT_BYTES, Account, is_unified
from ullage.explaining.analysis.text.actions import Shortage, actions_for, generic_actions, one_tensor
from ullage.explaining.analysis.text.situation import FailurePhase, Situation
from ullage.explaining.analysis.text.vendor import vendor_of
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.message import Message

_MOST_NAMED: Final = 3  # the number of other processes that are listed by ID
_NOTABLE_ONE_IN: Final = 10  # 1 / 10 of the GPU's memory: the least use by other processes that deserves a verdict
_ROUNDING_BYTES: Final = 16 * MIB
_NEARLY_FULL: Final = 0.04
"""The free part of a GPU's memory below which the GPU counts as full."""
_INTEL_LARGEST_BYTES: Final = 4 * GIB
"""The largest single allocation that Intel's driver allows by default, in bytes."""
_HUGE_REQUEST_BYTES: Final = 24 * GIB
"""The size of a single request from which its shape is probably not what the user expects."""
_REQUEST_OVER_CACHE: Final = 4
"""A request that is this many times larger than PyTorch's cache needs free memory, not a less fragmented cache."""
_LARGE_CACHE: Final = 0.1
"""The part of a GPU's memory from which PyTorch's cache is large enough to be the reason for sure."""
_USUAL_CACHE: Final = 0.05
"""The part of a GPU's memory that PyTorch's cache usually has. A smaller cache is not the reason of a failure."""
_AMPLE_CACHE: Final = 2
_AMPLE_CACHE_BYTES: Final = 2 * GIB
"""A cache of this size, and twice as large as the request, is the reason even if it is a small part of the memory."""
_SHARED_GPU: Final = 0.3
"""The part of a GPU's memory from which other processes, not fragmentation, are the first reason of a failure."""
_LEAST_OTHERS_BYTES: Final = GIB
"""The memory that a desktop may hold on a GPU. Less does not count as another process that causes a failure."""
_NEARLY_FULL_USABLE: Final = 0.1
"""The free and cached part of a GPU's memory below which the report calls the GPU nearly full."""
_GPU_SIZES: Final = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 141, 180, 192, 288)
_USABLE: Final = 0.97
"""The part of a GPU's nominal memory that programs can use."""
_ENDS_AT_DEVICE: Final = re.compile(r"(?:on device|\bGPU)\W*$")
"""Pattern for a message that ends where PyTorch writes the number of the GPU."""
_OWN_VARIABLE: Final = {"NPU": "PYTORCH_NPU_ALLOC_CONF", "MUSA": "PYTORCH_MUSA_ALLOC_CONF"}


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
        unified = _unified(message, account)
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
        and account.others_bytes >= account.total_bytes // _NOTABLE_ONE_IN
    ):
        notes.append(
            f"other processes hold {text_of_bytes(account.others_bytes)} of the GPU{_numbers(message, account)}: "
            "ending them or using another GPU would also have helped"
        )
    return replace(verdict, notes=(*notes, *verdict.notes))


def _unified(message: Message, account: Account) -> TextVerdict | None:
    """Return the verdict if most memory in use on a machine with unified memory is not PyTorch's. Otherwise, None."""
    rest = account.others_bytes + account.unnamed_bytes
    if rest < account.total_bytes // _NOTABLE_ONE_IN or account.free_bytes >= (message.requested_bytes or 0):
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


def _spilt(account: Account) -> str:
    return (
        f"PyTorch counts {text_of_bytes(account.spilt_bytes)} more than are used on the GPU: Windows and WSL keep such "
        "memory in the host (shared GPU memory), which is slow; on Linux it is memory that was released without "
        "PyTorch's knowledge (vLLM's sleep mode)"
    )


def _judge(message: Message, account: Account | None, situation: Situation, libraries: int) -> TextVerdict:
    requested, free, cached = message.requested_bytes, message.free_bytes, message.unallocated_bytes
    if message.wording == "mps":
        return _apple(message, situation)
    if message.wording == "metal_buffer":
        return _metal_buffer(message, situation)
    if requested is None:
        return _bare(message, situation)
    if (limit := _limit(message)) is not None:
        return limit
    if free is not None and message.total_bytes is not None and free > message.total_bytes:
        return _contradictory(requested, free, message.total_bytes)
    if message.backend == "XPU" and requested >= _INTEL_LARGEST_BYTES and _held(message) + requested <= _room(message):
        return _intel_largest(requested)
    if message.total_bytes is not None and requested > message.total_bytes:
        return _larger_than_the_card(message, situation, requested, message.total_bytes)
    if free is None:
        return _without_free(message, situation, requested)
    if free > requested + _ROUNDING_BYTES:
        return _free_and_refused(message, account, situation, requested, free, libraries)
    if account is not None and (other := _elsewhere(message, account, requested, libraries, most=True)) is not None:
        return other
    is_shared = account is not None and account.others_bytes >= _SHARED_GPU * account.total_bytes
    is_cache_large = (cached or 0) >= _REQUEST_OVER_CACHE * requested
    if account is not None and is_shared and not is_cache_large and account.others_bytes >= requested - free:
        return _elsewhere(message, account, requested, libraries, most=False) or _full(
            message, account, situation, requested, free
        )
    if cached is not None and free + cached >= requested:
        return _in_pieces(message, situation, requested, free, cached)
    if account is not None and (other := _elsewhere(message, account, requested, libraries, most=False)) is not None:
        return other
    return _full(message, account, situation, requested, free)


def _bare(message: Message, situation: Situation) -> TextVerdict:
    asked = f" for a request of {text_of_bytes(message.requested_bytes)}" if message.requested_bytes else ""
    note = "give the whole message: the rest has the allocated, the free and the total memory"
    if _ENDS_AT_DEVICE.search(message.text):
        note = (
            "PyTorch wrote the GPU's number as a control character, at which many programs cut the text: this message "
            "contains nothing more. It comes from the allocator cudaMallocAsync; start the program with "
            "PYTORCH_CUDA_ALLOC_CONF=backend:native (ComfyUI: --disable-cuda-malloc) to get the figures"
        )
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        # In public threads, too little GPU memory is by far the most frequent cause of a message without figures.
        likely=Cause.BOGUS_SIZE if (message.requested_bytes or 0) >= TIB else Cause.TRULY_FULL,
        sentence=f"GPU memory ran out{asked}; the message has no figures that show the cause.",
        remedies=(
            *((one_tensor(situation),) if (message.requested_bytes or 0) >= _HUGE_REQUEST_BYTES else ()),
            *generic_actions(situation, "a guess: the message has no figures of the GPU's memory"),
        ),
        notes=(note,),
    )


def _metal_buffer(message: Message, situation: Situation) -> TextVerdict:
    """Return the verdict on a request that is larger than the largest single buffer of Apple's GPU."""
    asked = text_of_bytes(message.requested_bytes) if message.requested_bytes else "more than 4 GiB"
    most = (
        f", and a buffer may have at most {text_of_bytes(int(message.said['most_bytes']))}"
        if "most_bytes" in message.said
        else ""
    )
    actions = generic_actions(situation, f"one tensor of {asked}")
    split = estimate(
        "compute in smaller parts: a smaller batch, fewer frames, a smaller image, or attention in chunks (tiling, "
        "slicing)",
        f"one tensor of {asked} is needed at once; it is often an attention matrix or an upscaled image",
    )
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"A single request exceeds what Apple's GPU can have in one buffer: {asked} were requested at once{most}."
        ),
        remedies=(*actions, split) if situation.phase is FailurePhase.LOADING else (split,),
        notes=("GPU and CPU share the memory of a Mac: other programs use it too",),
    )


def _held(message: Message) -> int:
    return message.reserved_bytes or message.allocated_bytes or 0


def _room(message: Message) -> int:
    if message.free_bytes is not None:
        return _held(message) + message.free_bytes
    return message.total_bytes or 0


def _without_free(message: Message, situation: Situation, requested: int) -> TextVerdict:
    """Return the verdict on a message that does not say how much GPU memory was free."""
    total, held = message.total_bytes, _held(message)
    if total is None:
        return _bare(message, situation)
    if message.allocated_bytes is not None and message.allocated_bytes + requested > total:
        return TextVerdict(
            cause=Cause.TRULY_FULL,
            sentence=(
                f"PyTorch had {text_of_bytes(message.allocated_bytes)} of {text_of_bytes(total)} allocated when a "
                f"request for {text_of_bytes(requested)} failed."
            ),
            remedies=tuple(_actions(message, situation, requested, message.allocated_bytes + requested - total)),
        )
    had = f", and PyTorch itself held {text_of_bytes(held)}" if message.allocated_bytes is not None else ""
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=(
            f"A request for {text_of_bytes(requested)} was refused on a GPU with {text_of_bytes(total)}{had}; the "
            "message does not say how much memory was free."
        ),
        likely=Cause.TRULY_FULL if situation.phase is not FailurePhase.UNKNOWN else None,
        remedies=tuple(generic_actions(situation, "a guess: the message is cut, so who held the memory is unknown")),
        notes=(
            "check for other programs on the GPU, for WSL or Windows, which provide less than the GPU has, and for "
            "the rest of the message if it was cut",
        ),
    )


def _contradictory(requested: int, free: int, total: int) -> TextVerdict:
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


def _intel_largest(requested: int) -> TextVerdict:
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            "A limit of Intel's driver refused the request; the GPU's memory size is not the cause: "
            f"{text_of_bytes(requested)} were requested at once, and a single allocation may have at most 4 GiB."
        ),
        remedies=(
            estimate("UR_L0_USE_RELAXED_ALLOCATION_LIMITS=1, set before the program starts", "removes that limit"),
            estimate("compute in parts, each tensor below 4 GiB", f"{text_of_bytes(requested)} at once"),
        ),
    )


def _limit(message: Message) -> TextVerdict | None:
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


def _larger_than_the_card(message: Message, situation: Situation, requested: int, total: int) -> TextVerdict:
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


def _actions(
    message: Message, situation: Situation, requested: int, missing: int, reason: str = ""
) -> Iterator[Remedy]:
    """Yield the advice that follows from what the program was doing."""
    shortage = Shortage(
        requested_bytes=requested,
        missing_bytes=missing,
        allocated_bytes=message.allocated_bytes or 0,
        total_bytes=message.total_bytes,
        reason=reason,
    )
    return actions_for(situation, shortage)


def _free_and_refused(
    message: Message, account: Account | None, situation: Situation, requested: int, free: int, libraries: int
) -> TextVerdict:
    """Return the verdict on a request that was refused although more memory was free than requested."""
    had = f"{text_of_bytes(free)} were free on the GPU when {text_of_bytes(requested)} were refused"
    if message.wording == "custom_pool":
        return TextVerdict(
            cause=Cause.CANNOT_TELL, sentence=f"The memory pool's own allocator refused the request: {had}."
        )
    if account is not None and (account.unnamed_bytes + account.others_bytes) * 2 >= account.total_bytes:
        other = _elsewhere(message, account, requested, libraries, most=False)
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
            (other := _elsewhere(message, account, requested, libraries, most=False)) is not None
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
            remedies=tuple(_actions(message, situation, requested, 0, f"{share:.1f} % were in use")),
        )
    is_windows = _is_windows(message, situation)
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


def _is_windows(message: Message, situation: Situation) -> bool:
    """Return whether a message is probably from Windows: by the paths, or by what PyTorch could not find out there."""
    if message.backend not in (None, "CUDA"):
        return False
    # PyTorch names the processes on the GPU only if NVML knows their memory. Under Windows it does not.
    names_nobody = message.process_bytes is None and not message.other_processes
    is_whole = message.wording == "of_which_free" and message.unallocated_bytes is not None
    if situation.frames:
        return any("\\" in frame.file for frame in situation.frames)
    return is_whole and names_nobody


def _elsewhere(message: Message, account: Account, requested: int, libraries: int, *, most: bool) -> TextVerdict | None:
    vendor = vendor_of(message.backend)
    missing = requested - account.free_bytes
    notable = max(account.total_bytes // _NOTABLE_ONE_IN, _LEAST_OTHERS_BYTES)
    least = max(account.reserved_bytes, notable) if most else notable
    unnamed = max(0, account.unnamed_bytes - CONTEXT_BYTES // 2)
    if account.others_bytes >= max(missing, least):
        return _of_others(
            f"Other processes hold {text_of_bytes(account.others_bytes)} of the GPU{_numbers(message, account)}. "
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
        )
    return None


def _numbers(message: Message, account: Account) -> str:
    listed = [process for process in message.other_processes if process.number != account.own_number]
    listed.sort(key=lambda process: -process.used_bytes)
    named = [f"{process.number} ({text_of_bytes(process.used_bytes)})" for process in listed[:_MOST_NAMED]]
    named += [f"{len(listed) - _MOST_NAMED} more"] if len(listed) > _MOST_NAMED else []
    return f" (process {', '.join(named)})" if named else ""


def _of_others(sentence: str, action: str, size: int, account: Account) -> TextVerdict:
    return TextVerdict(
        cause=Cause.OTHER_PROCESS,
        sentence=sentence,
        remedies=(
            estimate(action, f"{text_of_bytes(account.free_bytes)} free + {text_of_bytes(size)}"),
            estimate(
                "if the others have to stay: less memory in this program (a smaller input, batch or model)",
                f"it has {text_of_bytes(account.reserved_bytes)} itself",
            ),
        ),
    )


def _in_pieces(message: Message, situation: Situation, requested: int, free: int, cached: int) -> TextVerdict:
    allocated = message.allocated_bytes
    usable = free + cached
    variable = _OWN_VARIABLE.get(message.backend or "")
    line = f"export {variable}=expandable_segments:True; " if variable else ""
    is_old = message.wording in ("cached", "reserved_in_total") and message.backend not in _OWN_VARIABLE
    line = "needs torch 2.1 or newer, and this message is older; " if is_old else line
    has_windows_paths = any("\\" in frame.file for frame in situation.frames)
    line = "not on Windows; " if has_windows_paths else line
    sums = f"{text_of_bytes(requested)} requested, {text_of_bytes(free)} free, {text_of_bytes(cached)} cached in pieces"
    expandable: tuple[Remedy, ...] = (
        ()
        if message.is_expandable
        else (
            estimate(
                "expandable_segments:True",
                f"{line}if all cached memory were usable: {text_of_bytes(free)} + {text_of_bytes(cached)} - "
                f"{text_of_bytes(requested)} = {text_of_bytes(usable - requested)} to spare",
            ),
        )
    )
    is_mostly_tensors = requested >= _REQUEST_OVER_CACHE * cached or (
        message.total_bytes is not None
        and cached < min(_USUAL_CACHE * message.total_bytes, max(_AMPLE_CACHE * requested, _AMPLE_CACHE_BYTES))
    )
    is_nearly_full = message.total_bytes is None or usable < _NEARLY_FULL_USABLE * message.total_bytes
    if allocated is not None and (is_mostly_tensors or is_full(allocated + usable, usable - requested)):
        return TextVerdict(
            cause=Cause.TRULY_FULL,
            sentence=(
                f"{'The GPU was nearly full' if is_nearly_full else 'The request was too large'}: "
                f"{text_of_bytes(allocated)} were allocated when a request for {text_of_bytes(requested)} failed; "
                f"{text_of_bytes(free)} were free, and {text_of_bytes(cached)} cached in pieces."
            ),
            remedies=(*_actions(message, situation, requested, requested - free, sums), *expandable),
        )
    comes_first = has_windows_paths or is_old
    actions = tuple(generic_actions(situation, sums if comes_first else f"if expandable segments do not help: {sums}"))
    notes = ["no free piece was large enough; a snapshot shows which tensors are between the pieces"]
    if message.wording in ("cached", "reserved_in_total") and message.backend not in _OWN_VARIABLE:
        notes.append("this message is from torch 2.0 or older; expandable_segments requires torch 2.1")
    return TextVerdict(
        cause=Cause.FRAGMENTED,
        is_sure=message.total_bytes is not None and cached >= _LARGE_CACHE * message.total_bytes,
        sentence=(
            f"The free memory was fragmented: {text_of_bytes(requested)} were requested in one piece. "
            f"{text_of_bytes(free)} were free, and {text_of_bytes(cached)} cached, which live tensors divide into "
            "smaller pieces."
        ),
        remedies=(*actions, *expandable) if comes_first else (*expandable, *actions),
        notes=tuple(notes),
    )


def _full(message: Message, account: Account | None, situation: Situation, requested: int, free: int) -> TextVerdict:
    allocated, cached = message.allocated_bytes, message.unallocated_bytes
    missing = requested - free - (cached or 0)
    if allocated is None:
        of = f" of {text_of_bytes(message.total_bytes)}" if message.total_bytes is not None else ""
        return TextVerdict(
            cause=Cause.TRULY_FULL if cached is not None else Cause.CANNOT_TELL,
            likely=Cause.TRULY_FULL,
            sentence=(
                f"GPU memory ran out: {text_of_bytes(requested)} were requested and {text_of_bytes(free)}{of} were "
                "free. The message does not say who held the rest."
            ),
            remedies=tuple(
                generic_actions(situation, "a guess: the message is cut, so who held the memory is unknown")
            ),
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
    remedies = list(_actions(message, situation, requested, missing))
    if message.total_bytes is not None:
        # If some of PyTorch's memory was not on the GPU, all of it and the request must fit on the GPU.
        is_spilt = account is not None and account.spilt_bytes
        on_card, more = (allocated, requested) if is_spilt else (message.total_bytes, missing)
        larger = _larger_gpu(message.total_bytes, on_card + more)
        is_partial = situation.phase in (FailurePhase.LOADING, FailurePhase.OPTIMIZER, FailurePhase.PREPARING)
        if larger is not None and not is_partial:  # the rest of the weights or states would need more
            remedies.append(
                estimate(
                    f"a GPU with {larger} GiB or more",
                    f"at least {text_of_bytes(on_card)} + {text_of_bytes(more)}; later requests may need more",
                )
            )
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"{text_of_bytes(allocated)}{total} were allocated when a request for {text_of_bytes(requested)} failed "
            f"with {text_of_bytes(free)} free{'; ' + even if even else ''}.{outside}"
        ),
        remedies=tuple(remedies),
        notes=tuple(notes),
    )


def _larger_gpu(total_bytes: int, needed_bytes: int) -> int | None:
    """Return the next usual size of a GPU, in GiB, that has the needed bytes and is larger than the present GPU."""
    own = next((size for size in _GPU_SIZES if size * GIB >= total_bytes), _GPU_SIZES[-1])
    fitting = (size for size in _GPU_SIZES if size > own and _USABLE * size * GIB >= needed_bytes)
    return next(fitting, None)


def _apple(message: Message, situation: Situation) -> TextVerdict:
    if message.requested_bytes is None or message.allowed_bytes is None or message.allocated_bytes is None:
        return _bare(message, situation)
    other = message.other_allocations_bytes or 0
    missing = message.requested_bytes + message.allocated_bytes + other - message.allowed_bytes
    limit = estimate(
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0, set before the program starts",
        "removes the limit; the GPU shares the host's memory, so macOS then swaps or ends programs",
    )
    empty = estimate(
        "torch.mps.empty_cache() before this line, and deleting what is no longer needed",
        f"{text_of_bytes(other)} are in other Metal allocations: caches and buffers of this process outside PyTorch's "
        "allocator, and of its libraries",
    )
    is_other = other > message.allocated_bytes
    actions = tuple(_actions(message, situation, message.requested_bytes, missing))
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"PyTorch held {text_of_bytes(message.allocated_bytes)} and other Metal allocations held "
            f"{text_of_bytes(other)} of the {text_of_bytes(message.allowed_bytes)} allowed when a request for "
            f"{text_of_bytes(message.requested_bytes)} failed."
        ),
        remedies=(empty, limit) if is_other else (*actions, limit),
        notes=(
            "the limit is a share of the memory that macOS recommends for the GPU "
            "(PYTORCH_MPS_HIGH_WATERMARK_RATIO, 1.7 by default)",
        ),
    )


def judge_preempted(message: Message) -> TextVerdict:
    """Return the explanation of an allocation that PyTorch refused before asking the driver (`throw_on_cudamalloc_oom`,
    torch 2.12).
    """
    held, allowed, requested = message.reserved_bytes, message.allowed_bytes, message.requested_bytes
    if (limit := _limit(message)) is not None:
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
