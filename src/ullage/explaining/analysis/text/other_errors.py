"""Errors other than those of PyTorch's allocator: of CUDA, its libraries, host memory and addresses."""

from collections.abc import Callable
from typing import Final

from ullage.base.units import BOGUS_BYTES, GIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.verdict import LEAVE_ROOM, TextVerdict, estimate
from ullage.recorded.message.message import Message
from ullage.recorded.message.wording import MessageKind

_Judge = TextVerdict | Callable[[Message], TextVerdict]
_NAMES: Final = {
    "CUBLAS": "cuBLAS",
    "CUDNN": "cuDNN",
    "CUSOLVER": "cuSOLVER",
    "CUSPARSE": "cuSPARSE",
    "CUFFT": "cuFFT",
    "CURAND": "cuRAND",
    "HIPBLAS": "hipBLAS",
    "HIPSPARSE": "hipSPARSE",
    "HIPFFT": "hipFFT",
}
_VULKAN: Final = TextVerdict(
    cause=Cause.DISGUISED,
    sentence=(
        "Vulkan's driver had no memory of the card left for a program that asks it directly; the text has no figures."
    ),
    remedies=(estimate("a smaller tile, image, batch or model", "less is needed at once, whatever the program is"),),
    notes=("other programs may hold the card, the screen's among them",),
)
"""The verdict on a driver that PyTorch does not use: programs ask it for their buffers themselves."""
_KERNEL_DRIVER: Final = TextVerdict(
    cause=Cause.DISGUISED,
    sentence=(
        "NVIDIA's kernel driver got no memory; its line in the system's log does not say whether of the card or of "
        "the machine, how much, nor for which process."
    ),
    remedies=(
        estimate(
            "a lower gpu_memory_utilization, mem_fraction_static or batch",
            "on a machine with unified memory (GB10 in DGX Spark, Jetson) the card's share is the machine's, too",
        ),
    ),
    notes=(
        "with unified memory there is no error that a program could catch: the machine may stop. Leave it 10 GiB, "
        "and watch free -h, since nvidia-smi has no figures there",
        "what ran then is told by the lines around it: dmesg -T",
    ),
)
"""The verdict on what NVIDIA's kernel driver writes into the system's log."""
_WITHOUT_NVML: Final = TextVerdict(
    cause=Cause.DISGUISED,
    sentence=(
        "The card's memory ran out: PyTorch was about to say so, asked the driver's library (NVML) who holds it, "
        "and that failed; this assertion is in place of the error, so that there are no figures."
    ),
    remedies=(estimate("a smaller batch or model", "the driver has refused a request of PyTorch's"),),
    notes=(
        "NVML fails on Jetson, on slices of a card (MIG), under WSL and in some containers",
        "torch.cuda.memory_summary() where the error is caught has PyTorch's figures",
    ),
)
"""The verdict on a failure of NVML: PyTorch asks it who is on the card only where the driver has refused a request."""
_WARNED: Final = TextVerdict(
    cause=Cause.CANNOT_TELL,
    sentence=(
        "No request failed in this text: the driver had no memory, and PyTorch's allocator gave its cache back and "
        "asked again."
    ),
    notes=("that costs time: each retry waits for the card and calls the driver for every cached segment",),
)


def judge_other(message: Message, statement: str | None, context: tuple[str, ...] = ()) -> TextVerdict:
    """Judge a message of any kind but the allocator's own.

    Args:
        message: the message.
        statement: the user's line that raised it, if known.
        context: what the program was doing, by the names that `ullage.recorded.message.log` finds.
    """
    if message.kind is MessageKind.DRIVER:
        judge = _DRIVERS.get(message.backend or "")
        if judge is None:
            return _driver(statement, context)
    else:
        judge = _JUDGES[message.kind]
    return judge(message) if callable(judge) else judge


def _address_space(message: Message) -> TextVerdict:
    if message.reserve_bytes is not None and message.requested_bytes is not None:
        needed = -(-message.requested_bytes // GIB)
        return TextVerdict(
            cause=Cause.ADDRESS_SPACE,
            sentence=(
                f"Not memory, but a range of addresses is too short: {text_of_bytes(message.requested_bytes)} were "
                f"asked for at once and an expandable segment is {text_of_bytes(message.reserve_bytes)} long."
            ),
            remedies=(
                estimate(f"expandable_segments_reserve:{needed}G", "at least as long as the largest single tensor"),
            ),
        )
    return TextVerdict(
        cause=Cause.ADDRESS_SPACE,
        sentence="Address space ran out, not memory: no range was left for another expandable segment.",
        remedies=(
            estimate("expandable_segments_reserve:0.5", "half a card's length a segment instead of 9/8"),
            estimate("use fewer streams", "each has segments of its own"),
        ),
    )


def _bogus(message: Message) -> TextVerdict:
    asked = text_of_bytes(message.requested_bytes) if message.requested_bytes is not None else "more than 1 EiB"
    return TextVerdict(
        cause=Cause.BOGUS_SIZE,
        sentence=f"The request makes no sense: {asked} were asked for; look at what computes the size.",
        notes=(
            "a length read from uninitialised or damaged memory, or a negative one, looks like this (also after NCCL)",
        ),
    )


def _driver(statement: str | None, context: tuple[str, ...]) -> TextVerdict:
    if (statement is not None and "pin_memory" in statement) or "pinned memory" in context:
        line = f" ({statement})" if statement is not None else " (the traceback leads there)"
        return TextVerdict(
            cause=Cause.DISGUISED,
            sentence=(
                f"The machine's own memory could not be pinned{line}: CUDA's error reads as if it were the card's."
            ),
            remedies=(
                estimate("pin_memory=False, or less prefetching", "PyTorch rounds pinned memory up to a power of two"),
            ),
        )
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=(
            "CUDA itself ran out of memory, outside of PyTorch's allocator, and gives no figures: it needed memory "
            "for its context, for loading kernels, or for pinning host memory."
        ),
        remedies=(LEAVE_ROOM,),
        notes=(
            "if it is the first thing that the process does on the card, other processes hold it: see with nvidia-smi",
            "with pin_memory or cudaHostAlloc in the traceback it is the machine's memory, not the card's",
        ),
    )


def _level_zero(message: Message) -> TextVerdict:
    """Judge an error of Intel's driver (Level Zero): one that PyTorch did not get as an error of memory."""
    less = estimate("a smaller batch, image or model", "Intel's driver often answers so where PyTorch's cards raise")
    if message.is_certain:
        return TextVerdict(
            cause=Cause.DISGUISED,
            sentence=(
                "Intel's driver (Level Zero) had no memory of the card left, outside of PyTorch's allocator; the text "
                "has no figures."
            ),
            remedies=(less,),
        )
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=(
            "Intel's driver (Level Zero) says that it is out of resources: most often the card's memory, but a kernel "
            "that needs too many registers or too much shared memory is told the same; the text has no figures."
        ),
        remedies=(less,),
        notes=("torch.xpu.memory_summary() before that line shows how full the card was",),
    )


def _library(message: Message) -> TextVerdict:
    if message.wording == "nvml":
        return _WITHOUT_NVML
    name = _NAMES.get(message.backend or "", message.backend or "a library")
    if message.is_certain:
        sentence = (
            f"Disguised: {name} got no memory for itself, because PyTorch's allocator or others had taken the card."
        )
    else:
        sentence = (
            f"Likely disguised: {name} says that it could not start or found no way to compute, which most often means "
            "that the card was full."
        )
    doubt = (
        "it can also mean an earlier error of a kernel, or libraries that do not go together: print "
        "torch.cuda.mem_get_info() before that line"
    )
    notes = () if message.is_certain else (doubt,)
    return TextVerdict(cause=Cause.DISGUISED, sentence=sentence, remedies=(LEAVE_ROOM,), notes=notes)


def _host(message: Message) -> TextVerdict:
    asked = f": {text_of_bytes(message.requested_bytes)} were asked for" if message.requested_bytes else ""
    if message.wording == "shared_memory":
        return TextVerdict(
            cause=Cause.LIMIT,
            sentence="Not the card: /dev/shm, through which the workers of a DataLoader hand over batches, is full.",
            remedies=(
                estimate("docker run --shm-size=8g, or fewer workers", "batches in flight = workers x prefetch_factor"),
            ),
        )
    if message.wording == "paging_file":
        return TextVerdict(
            cause=Cause.DISGUISED,
            sentence="The machine's own memory ran out, not the card's: Windows can promise no more of it.",
            remedies=(
                estimate("a larger paging file", "what Windows can promise is the machine's memory and that file"),
                estimate("fewer DataLoader workers", "each loads CUDA's libraries, which count in full"),
            ),
        )
    if message.requested_bytes is not None and message.requested_bytes >= BOGUS_BYTES:
        return TextVerdict(
            cause=Cause.BOGUS_SIZE,
            sentence=f"The request makes no sense{asked} of the machine's memory; look at what computes its size.",
        )
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=f"The machine's own memory ran out, not the card's{asked}.",
        notes=(
            "Java's own limit counts as that: -Xmx raises it"
            if message.wording == "java"
            else "a limit of the container or the batch system counts as the machine's memory",
        ),
    )


def _killed(message: Message) -> TextVerdict:
    if message.is_certain:
        return TextVerdict(
            cause=Cause.DISGUISED,
            sentence="The machine's own memory ran out, not the card's, and the system killed the process.",
            remedies=(
                estimate("fewer DataLoader workers, smaller prefetch, or a larger limit of the job", "each has a copy"),
            ),
        )
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=(
            "The process was killed from outside (SIGKILL: exit code 137 or -9); most often the system did it because "
            "the machine's memory, not the card's, was full."
        ),
        notes=("dmesg -T | grep -i kill says whether it did; a scheduler or a person kills with the same signal",),
    )


def _on_chip(message: Message) -> TextVerdict:
    needed = f"{message.requested_bytes:,} bytes" if message.requested_bytes else "more"
    who = "Triton" if message.backend == "TRITON" else message.backend
    has = f"{int(message.said['limit_bytes']):,}" if "limit_bytes" in message.said else "less"
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"Not the card's memory: a {who} kernel needs {needed} of the chip's own fast (shared) memory a block, "
            f"and the chip has {has}; freeing memory does not help."
        ),
        remedies=(estimate("smaller blocks, or fewer num_stages", "shared memory grows with both"),),
    )


_JUDGES: Final[dict[MessageKind, _Judge]] = {
    MessageKind.ADDRESS_SPACE: _address_space,
    MessageKind.BOGUS_SIZE: _bogus,
    MessageKind.LIBRARY: _library,
    MessageKind.HOST: _host,
    MessageKind.KILLED: _killed,
    MessageKind.ON_CHIP: _on_chip,
    MessageKind.WARNING: _WARNED,
}
_DRIVERS: Final[dict[str, _Judge]] = {
    "LEVEL_ZERO": _level_zero,
    "NVRM": _KERNEL_DRIVER,
    "VULKAN": _VULKAN,
}
