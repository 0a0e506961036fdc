"""Explains memory errors from outside PyTorch's allocator: CUDA, its libraries, host memory and address space."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from ullage.base.units import BOGUS_BYTES, GIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.verdict import LEAVE_ROOM, TextVerdict, estimate
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
# The verdict on out-of-memory lines that NVIDIA's kernel driver writes to the system log.
_KERNEL_DRIVER: Final = TextVerdict(
    cause=Cause.DISGUISED,
    sentence=(
        "NVIDIA's kernel driver could not get memory; its line in the system log does not say whether GPU or host "
        "memory ran out, how much was requested, or for which process."
    ),
    remedies=(
        estimate(
            "a lower gpu_memory_utilization, mem_fraction_static or batch",
            "on a machine with unified memory (GB10 in DGX Spark, Jetson), the GPU shares the host's memory",
        ),
    ),
    notes=(
        "with unified memory, programs get no error that they can catch, and the machine may freeze: leave 10 GiB "
        "free, and watch free -h, because nvidia-smi has no figures there",
        "dmesg -T shows the adjacent lines of the system log, and so the programs that ran",
    ),
)
"""The verdict on out-of-memory lines that NVIDIA's kernel driver writes to the system log."""
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
_UNIFIED: Final = TextVerdict(
    cause=Cause.DISGUISED,
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
_VICTIM: Final = re.compile(r"Killed process \d+ \((?P<name>[^)]{1,40})\).*?anon-rss:(?P<kib>\d{1,15})kB")
"""Pattern for the kernel's line about a killed process, with the host memory that the process held."""
_LIMITED: Final = {
    "slurm": ("Slurm job", "#SBATCH --mem=..."),
    "kubernetes": ("container", "resources.limits.memory in the pod's specification"),
}
"""Maps each scheduler to what it gives a memory limit, such as a job, and to the setting that raises the limit."""
_WARNED: Final = TextVerdict(
    cause=Cause.CANNOT_TELL,
    sentence=(
        "No request failed in this log: the driver had no memory left, so PyTorch's allocator returned its cache and "
        "retried."
    ),
    notes=("retries cost time: each one synchronizes with the GPU and calls the driver for every cached segment",),
)


def judge_other(
    message: Message, statement: str | None, context: tuple[str, ...] = (), frames: Sequence[TextFrame] = ()
) -> TextVerdict:
    """Return the verdict on a message that does not come from PyTorch's allocator.

    Args:
        message: the message.
        statement: the line of user code that raised the error, if known.
        context: the activities of the program, as names from `ullage.recorded.message.log`.
        frames: the stack frames of the traceback, the innermost first.
    """
    if message.kind is MessageKind.DRIVER:
        judge = _DRIVERS.get(message.backend or "")
        if judge is None:
            return _driver(statement, context, frames)
    else:
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
        notes=(
            "possible reasons: a negative length, or a length read from uninitialised or damaged memory (also after "
            "NCCL)",
        ),
    )


def _driver(statement: str | None, context: tuple[str, ...], frames: Sequence[TextFrame]) -> TextVerdict:
    if (statement is not None and "pin_memory" in statement) or "pinned memory" in context:
        line = f" ({statement})" if statement is not None else " (the traceback shows where)"
        return TextVerdict(
            cause=Cause.DISGUISED,
            sentence=(
                f"Host memory could not be pinned{line}, although CUDA's error reads as if GPU memory had run out."
            ),
            remedies=(
                estimate(
                    "pin_memory=False, or less prefetching",
                    "PyTorch rounds the size of pinned memory up to a power of two",
                ),
            ),
        )
    if "unified memory" in context:
        return _UNIFIED
    if is_first_call(frames, statement):
        return _FIRST_CALL
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=(
            "CUDA itself ran out of memory, outside of PyTorch's allocator: it needed memory for its context, for "
            "loading kernels, or for pinning host memory. The message has no figures."
        ),
        remedies=(LEAVE_ROOM,),
        notes=(
            "if this is the first use of the GPU in the process, other processes hold its memory: list them with "
            "nvidia-smi",
            "if the traceback has pin_memory or cudaHostAlloc, host memory ran out, not GPU memory",
        ),
    )


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
    return TextVerdict(cause=Cause.DISGUISED, sentence=sentence, remedies=(LEAVE_ROOM,), notes=notes)


def _host(message: Message) -> TextVerdict:
    asked = f": {text_of_bytes(message.requested_bytes)} were requested" if message.requested_bytes else ""
    if message.wording == "shared_memory":
        return TextVerdict(
            cause=Cause.LIMIT,
            sentence="/dev/shm is full, not the GPU: DataLoader workers pass batches through it.",
            remedies=(
                estimate("docker run --shm-size=8g, or fewer workers", "batches in flight = workers x prefetch_factor"),
            ),
        )
    if message.wording == "paging_file":
        return TextVerdict(
            cause=Cause.DISGUISED,
            sentence="Host memory ran out, not GPU memory: Windows cannot commit more of it.",
            remedies=(
                estimate("a larger paging file", "Windows can commit the host's memory plus that file"),
                estimate("fewer DataLoader workers", "each worker loads CUDA's libraries, which count in full"),
            ),
        )
    if message.requested_bytes is not None and message.requested_bytes >= BOGUS_BYTES:
        return TextVerdict(
            cause=Cause.BOGUS_SIZE,
            sentence=f"The requested size is impossible for host memory{asked}. Check the code that computes it.",
        )
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=f"Host memory ran out, not GPU memory{asked}.",
        notes=(
            "Java's own limit counts as host memory: -Xmx raises it"
            if message.wording == "java"
            else "a limit of the container or the batch system counts as host memory",
        ),
    )


def _killed(message: Message) -> TextVerdict:
    if not message.is_certain:
        return TextVerdict(
            cause=Cause.CANNOT_TELL,
            sentence=(
                "The process was killed from outside (SIGKILL: exit code 137 or -9), usually by the system because "
                "host memory, not GPU memory, was full."
            ),
            notes=(
                "dmesg -T | grep -i kill shows whether the system did it; schedulers and users send the same signal",
            ),
        )
    victim = _VICTIM.search(message.text)
    held = f": process {victim['name']} held {text_of_bytes(int(victim['kib']) * 1024)}" if victim is not None else ""
    if message.wording in _LIMITED:
        where, how = _LIMITED[message.wording]
        return TextVerdict(
            cause=Cause.DISGUISED,
            sentence=(
                f"Host memory ran out, not GPU memory: the {where} reached its memory limit, and a process was killed"
                f"{held}. The machine may have had free memory."
            ),
            remedies=(
                estimate(f"a higher memory limit ({how})", "the limit counts the memory of all processes and /dev/shm"),
                estimate(
                    "use less host memory: fewer DataLoader workers, and checkpoints that are loaded by one process "
                    "at a time",
                    "each worker, and each process that loads a checkpoint, has its own copy",
                ),
            ),
        )
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=f"Host memory ran out, not GPU memory, and the system killed the process{held}.",
        remedies=(
            estimate(
                "fewer DataLoader workers, smaller prefetch, or a higher memory limit for the job",
                "each worker has a copy",
            ),
        ),
    )


def _on_chip(message: Message) -> TextVerdict:
    needed = f"{message.requested_bytes:,} bytes" if message.requested_bytes else "more"
    who = "Triton" if message.backend == "TRITON" else message.backend
    has = f"{int(message.said['limit_bytes']):,}" if "limit_bytes" in message.said else "less"
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"The chip's shared memory is too small, not the GPU's memory: a {who} kernel needs {needed} per block, "
            f"and the chip has {has}. Freeing GPU memory does not help."
        ),
        remedies=(estimate("smaller blocks, or fewer num_stages", "both reduce the use of shared memory"),),
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
