"""Explains memory errors from outside PyTorch's allocator: CUDA, its libraries, host memory and address space."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ullage.base.units import GIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.remedy import Remedy
from ullage.explaining.analysis.text.host_memory import judge_host, judge_killed
from ullage.explaining.analysis.text.vendor import Vendor, vendor_of
from ullage.explaining.analysis.text.verdict import LEAVE_ROOM, TextVerdict, estimate
from ullage.recorded.message.log import FoundMessage
from ullage.recorded.message.message import Message
from ullage.recorded.message.traceback import TextFrame
from ullage.recorded.message.wording import MessageKind

_Judge = TextVerdict | Callable[[Message], TextVerdict]
_NAMES: Final = {
    "CUBLAS": "cuBLAS",
    "CUDNN": "cuDNN",
    "CUSOLVER": "cuSOLVER",
    "CUSPARSE": "cuSPARSE",
    "CUFFT": "cuFFT",
    "CURAND": "cuRAND",
    "ROCBLAS": "rocBLAS",
    "HIPBLAS": "hipBLAS",
    "HIPSPARSE": "hipSPARSE",
    "HIPFFT": "hipFFT",
}
# The verdict on errors of the Vulkan driver. PyTorch does not use this driver, but other programs allocate GPU memory
# from it.
_VULKAN: Final = TextVerdict(
    cause=Cause.DISGUISED,
    sentence=(
        "The Vulkan driver had no GPU memory left for a program that requests it directly; the message has no figures."
    ),
    remedies=(estimate("a smaller tile, image, batch or model", "reduces the memory needed at once, in any program"),),
    notes=("other programs may use the GPU, including the desktop",),
)
_CANN: Final = TextVerdict(
    cause=Cause.CANNOT_TELL,
    likely=Cause.DISGUISED,
    sentence=(
        "Ascend's runtime (CANN) could not get memory on the NPU, outside of PyTorch's allocator: for the workspace of "
        "an operator, for compiling, or for its start. The message has no figures of the NPU."
    ),
    remedies=(
        estimate(
            "a smaller batch, image or sequence, offloading, or quantized weights",
            "operators need workspace in addition to the tensors: leave a few GiB free",
        ),
        estimate("list the NPU's processes with npu-smi info, and end the others", "they use the same memory"),
    ),
)
"""The verdict on a failed allocation of Ascend's runtime."""
_METAL: Final = TextVerdict(
    cause=Cause.UNIFIED_MEMORY,
    sentence=(
        "Metal had no memory left: CPU and GPU share the memory of a Mac, and weights, KV cache and activations exceed "
        "what macOS lets the GPU use."
    ),
    remedies=(
        estimate(
            "a smaller or more quantized model, a shorter context, a smaller KV cache, or fewer requests at once",
            "macOS lets the GPU use about two thirds to three quarters of the memory",
        ),
        estimate("end other programs", "they use the same memory"),
    ),
)
"""The verdict on a Metal command that failed because memory ran out."""
# The verdict on out-of-memory lines that NVIDIA's kernel driver writes to the system log.
_KERNEL_DRIVER: Final = TextVerdict(
    cause=Cause.DISGUISED,
    likely=Cause.UNIFIED_MEMORY,
    sentence=(
        "NVIDIA's kernel driver could not get memory; its line in the system log does not say whether GPU or host "
        "memory ran out, how much was requested, or for which process."
    ),
    remedies=(
        estimate(
            "a lower gpu_memory_utilization, mem_fraction_static or batch",
            "on a machine with unified memory (GB10 in DGX Spark, Jetson), the GPU shares the host's memory",
        ),
        estimate(
            "drop the page cache before loading: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches",
            "files that were read, such as checkpoints, stay in the page cache of the shared memory",
        ),
    ),
    notes=(
        "with unified memory, programs get no error that they can catch, and the machine may freeze: leave 10 GiB "
        "free, and watch free -h, because nvidia-smi has no figures there",
        "dmesg -T shows the adjacent lines of the system log, and so the programs that ran",
    ),
)
"""The verdict on out-of-memory lines that NVIDIA's kernel driver writes to the system log."""
_PINS: Final = re.compile(
    r"pin_memory|cudaHost(?:Alloc|Register)|pinned|\bpin_\w|(?<=\w)_pin\b|page_?lock"
    r"|\.to\([\"']cpu[\"'].{0,200}non_blocking ?= ?True"
)
"""Pattern for statements that pin host memory. A copy to the CPU with non_blocking=True pins its destination."""
_OFFLOADS: Final = re.compile(r"offload|to_cpu|swap|cpu", re.IGNORECASE)
"""Pattern for code that moves weights to the CPU."""
_FIRST_USE: Final = re.compile(
    r"\b(set_device|init_device|_lazy_init|_cuda_init|cuda\.init|cuDevicePrimaryCtxRetain)\b"
)
"""Pattern for calls that use a GPU for the first time and create its CUDA context."""
_FIRST_CALL: Final = TextVerdict(
    cause=Cause.OTHER_PROCESS,
    sentence=(
        "The GPU was full before this process used it: the process failed at its first CUDA call, which creates the "
        "CUDA context and needs a few hundred MiB."
    ),
    remedies=(
        estimate(
            "list the GPU's processes with nvidia-smi (in a container: on the host), and end them",
            "an earlier run that did not end, a server or another user holds the memory",
        ),
        estimate("use another GPU (CUDA_VISIBLE_DEVICES)", "settings of this process do not help before it has memory"),
    ),
)
"""The verdict on an out-of-memory error of CUDA at the first use of the GPU in a process."""


def _first_call(vendor: Vendor) -> TextVerdict:
    remedies = tuple(
        replace(
            remedy,
            action=(remedy.action or "")
            .replace("nvidia-smi", vendor.list_processes)
            .replace("CUDA_VISIBLE_DEVICES", vendor.select_device),
        )
        for remedy in _FIRST_CALL.remedies
    )
    return replace(_FIRST_CALL, sentence=_FIRST_CALL.sentence.replace("CUDA", vendor.driver), remedies=remedies)


_UNIFIED: Final = TextVerdict(
    cause=Cause.UNIFIED_MEMORY,
    sentence=(
        "The memory that GPU and CPU share is full (unified memory, as on Jetson): the operating system, its page "
        "cache, other programs and pinned memory use the same memory."
    ),
    remedies=(
        estimate(
            "look at the shared memory with free -h or tegrastats, and end other programs (also the desktop)",
            "nvidia-smi has no figures for unified memory",
        ),
        estimate(
            "drop the page cache: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches",
            "files that were read, such as checkpoints, stay in the page cache, which the GPU driver cannot use",
        ),
    ),
)
"""The verdict on an out-of-memory error on a machine whose GPU shares the memory of the CPU."""
# PyTorch asks NVML for the processes only after the driver refused a request, so the GPU was out of memory.
_WITHOUT_NVML: Final = TextVerdict(
    cause=Cause.DISGUISED,
    sentence=(
        "The GPU ran out of memory. Before reporting that, PyTorch asked NVML which processes hold the memory, and "
        "that query failed. This assertion replaces the out-of-memory error, so no figures are available."
    ),
    remedies=(estimate("a smaller batch or model", "the driver refused a request of PyTorch"),),
    notes=(
        "NVML fails on Jetson, on GPU partitions (MIG), under WSL and in some containers",
        "torch.cuda.memory_summary() has PyTorch's figures; call it where the error is caught",
    ),
)
_WARNED: Final = TextVerdict(
    cause=Cause.CANNOT_TELL,
    sentence=(
        "No request failed in this log: the driver had no memory left, so PyTorch's allocator returned its cache and "
        "retried."
    ),
    notes=("retries cost time: each one synchronizes with the GPU and calls the driver for every cached segment",),
)


def judge_other(found: FoundMessage) -> TextVerdict:
    """Return the verdict on a message that does not come from PyTorch's allocator."""
    message = found.message
    match message.kind:
        case MessageKind.LIBRARY if message.wording == "nvml" and "unified memory" in found.context:
            return _UNIFIED
        case MessageKind.DRIVER if message.backend not in _DRIVERS:
            return _driver(found)
        case MessageKind.HOST:
            return judge_host(found)
        case MessageKind.KILLED:
            return judge_killed(found)
        case MessageKind.DRIVER:
            judge = _DRIVERS[message.backend or ""]
        case _:
            judge = _JUDGES[message.kind]
    return judge(message) if callable(judge) else judge


def _address_space(message: Message) -> TextVerdict:
    if message.reserve_bytes is not None and message.requested_bytes is not None:
        needed = -(-message.requested_bytes // GIB)
        return TextVerdict(
            cause=Cause.ADDRESS_SPACE,
            sentence=(
                "Memory did not run out, but the address range of an expandable segment is too short: "
                f"{text_of_bytes(message.requested_bytes)} were requested at once, and the segment spans "
                f"{text_of_bytes(message.reserve_bytes)}."
            ),
            remedies=(
                estimate(f"expandable_segments_reserve:{needed}G", "at least the size of the largest single tensor"),
            ),
        )
    return TextVerdict(
        cause=Cause.ADDRESS_SPACE,
        sentence="Address space ran out, not memory: no address range was left for another expandable segment.",
        remedies=(
            estimate(
                "expandable_segments_reserve:0.5", "reserves 1/2 of the GPU's memory size per segment instead of 9/8"
            ),
            estimate("use fewer streams", "each stream has its own segments"),
        ),
    )


def _bogus(message: Message) -> TextVerdict:
    asked = text_of_bytes(message.requested_bytes) if message.requested_bytes is not None else "more than 1 EiB"
    return TextVerdict(
        cause=Cause.BOGUS_SIZE,
        sentence=f"The requested size is impossible: {asked}. Check the code that computes it.",
        remedies=(
            estimate(
                "check the shapes and inputs of the failing line (NaN, empty or negative lengths), and install "
                "versions of the libraries and native extensions that fit each other and this GPU",
                "more GPU memory does not help",
            ),
        ),
        notes=(
            "possible reasons: a negative length, or a length read from uninitialised or damaged memory (also after "
            "NCCL)",
        ),
    )


def _driver(found: FoundMessage) -> TextVerdict:
    statement, context, frames = found.statement, found.context, found.frames
    pins = next((frame for frame in frames[:8] if _pins(frame)), None)
    if pins is not None or "pinned memory" in context:
        shown = pins.statement if pins is not None else statement
        line = f" ({shown})" if shown is not None else " (the traceback shows where)"
        return TextVerdict(
            cause=Cause.PINNED_MEMORY,
            sentence=(
                f"Host memory could not be pinned{line}, although CUDA's error reads as if GPU memory had run out."
            ),
            remedies=(
                estimate(
                    "pin_memory=False, non_blocking=False, or less prefetching or offloading",
                    "PyTorch rounds the size of pinned memory up to a power of two, and pinned memory cannot be "
                    "swapped: leave host memory free",
                ),
            ),
        )
    vendor = vendor_of(found.message.backend)
    if "unified memory" in context:
        return _UNIFIED
    if "first CUDA call" in context or is_first_call(frames, statement):
        return _FIRST_CALL if vendor.list_processes == "nvidia-smi" else _first_call(vendor)
    is_offload = any(_may_pin(frame) for frame in frames[:8])
    likely = Cause.PINNED_MEMORY if is_offload else None
    if "unified memory by name" in context:
        likely = Cause.UNIFIED_MEMORY
    return TextVerdict(
        cause=Cause.DISGUISED,
        likely=likely,
        sentence=(
            f"{vendor.driver} had no memory left for a request outside of PyTorch's allocator: of another library, for "
            "its context or kernels, or for pinning host memory. The message has no figures."
        ),
        remedies=(
            estimate(
                f"see with {vendor.list_processes} what holds the GPU: end other programs; if it is this one, a "
                "smaller batch, input or model, or offloading",
                f"{vendor.driver}'s context, kernels and libraries need memory next to PyTorch's",
            ),
            estimate(
                "torch.cuda.set_per_process_memory_fraction(0.9)",
                "PyTorch then leaves a tenth of the GPU's memory free, and an error has figures",
            ),
        ),
        notes=(
            f"errors are reported late: {vendor.blocking} shows the call that failed",
            "if the traceback has pin_memory or cudaHostAlloc, host memory ran out, not GPU memory",
        ),
    )


def _pins(frame: TextFrame) -> bool:
    texts = (frame.statement or "", frame.function or "", frame.file.rpartition("/")[2])
    return any(_PINS.search(text) is not None for text in texts)


def _may_pin(frame: TextFrame) -> bool:
    """Return whether a statement probably copies weights to the CPU without blocking, which pins the destination."""
    statement = frame.statement or ""
    is_copy = "non_blocking" in statement and "cuda" not in statement
    return is_copy and any(_OFFLOADS.search(text) is not None for text in (frame.function or "", frame.file))


def is_first_call(frames: Sequence[TextFrame], statement: str | None = None) -> bool:
    """Return whether a traceback shows the first use of the GPU in a process: CUDA creates its context there."""
    texts = [statement, *(frame.statement for frame in frames[:4]), *(frame.function for frame in frames[:4])]
    return any(text is not None and _FIRST_USE.search(text) for text in texts)


def _level_zero(message: Message) -> TextVerdict:
    less = estimate(
        "a smaller batch, image or model", "Intel's driver often returns this error when GPU memory runs out"
    )
    if message.is_certain:
        return TextVerdict(
            cause=Cause.DISGUISED,
            sentence=(
                "Intel's driver (Level Zero) had no GPU memory left, outside of PyTorch's allocator; the message has "
                "no figures."
            ),
            remedies=(less,),
        )
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=(
            "Intel's driver (Level Zero) reports that it is out of resources. This usually means GPU memory, but a "
            "kernel that needs too many registers or too much shared memory causes the same error; the message has "
            "no figures."
        ),
        remedies=(less,),
        notes=("torch.xpu.memory_summary() before that line shows how full the GPU was",),
    )


def _library(message: Message) -> TextVerdict:
    if message.wording == "nvml":
        return _WITHOUT_NVML
    name = _NAMES.get(message.backend or "", message.backend or "a library")
    if message.is_certain:
        sentence = (
            f"{name} could not allocate its own memory, because PyTorch's allocator or other programs had taken the "
            "GPU's memory."
        )
    else:
        sentence = (
            f"{name} reports that it could not start or found no algorithm, which usually means that the GPU's memory "
            "was full."
        )
    doubt = (
        "other possible reasons: an earlier kernel error, or incompatible libraries; print "
        "torch.cuda.mem_get_info() before that line"
    )
    notes = () if message.is_certain else (doubt,)
    remedies: tuple[Remedy, ...] = (
        estimate("a smaller batch or model", "leaves GPU memory free for libraries"),
        LEAVE_ROOM,
    )
    if message.backend == "NCCL":
        shared = estimate(
            "NCCL_CUMEM_HOST_ENABLE=0, or another version of NCCL",
            "in WSL and in some containers NCCL cannot allocate shared host memory through the driver",
        )
        less = estimate(
            "use less memory in PyTorch: a smaller micro batch, activation checkpointing, or more sharding (FSDP, "
            "ZeRO-3, tensor or pipeline parallelism)",
            "NCCL's buffers need several hundred MiB next to PyTorch's memory, more with more process groups",
        )
        remedies = (less, LEAVE_ROOM, shared)
    return TextVerdict(cause=Cause.DISGUISED, sentence=sentence, remedies=remedies, notes=notes)


def _on_chip(message: Message) -> TextVerdict:
    needed = f"{message.requested_bytes:,} bytes" if message.requested_bytes else "more"
    who = "Triton" if message.backend == "TRITON" else message.backend
    has = f"{int(message.said['limit_bytes']):,}" if "limit_bytes" in message.said else "less"
    return TextVerdict(
        cause=Cause.ON_CHIP,
        sentence=(
            f"The chip's shared memory is too small, not the GPU's memory: a {who} kernel needs {needed} per block, "
            f"and the chip has {has}. Freeing GPU memory does not help."
        ),
        remedies=(
            estimate(
                "if the program goes on, nothing (autotuning skips such configurations); otherwise smaller blocks, "
                "fewer num_stages, or another version of Triton or PyTorch",
                "blocks and stages use the shared memory of the chip",
            ),
        ),
    )


_JUDGES: Final[dict[MessageKind, _Judge]] = {
    MessageKind.ADDRESS_SPACE: _address_space,
    MessageKind.BOGUS_SIZE: _bogus,
    MessageKind.LIBRARY: _library,
    MessageKind.ON_CHIP: _on_chip,
    MessageKind.WARNING: _WARNED,
}
_DRIVERS: Final[dict[str, _Judge]] = {
    "NPU": _CANN,
    "METAL": _METAL,
    "LEVEL_ZERO": _level_zero,
    "NVRM": _KERNEL_DRIVER,
    "VULKAN": _VULKAN,
}
