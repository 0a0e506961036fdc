"""Explains errors of host memory: the machine, a container, a batch job, Windows, /dev/shm, or a kill by the system."""

import re
from typing import Final

from ullage.base.units import BOGUS_BYTES, GIB, KIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.remedy import Remedy
from ullage.explaining.analysis.text.phase import FailurePhase
from ullage.explaining.analysis.text.situation import situation_of
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.log import FoundMessage
from ullage.recorded.message.message import Message

_LARGE_ARRAY_BYTES: Final = 8 * GIB
_VICTIM: Final = re.compile(r"Killed process \d+ \((?P<name>[^)]{1,40})\).{0,400}?anon-rss:(?P<kib>\d{1,15})kB")
"""Pattern for the kernel's line about a killed process, with the host memory that the process held."""
_LIMITED: Final = {
    "slurm": ("Slurm job", "#SBATCH --mem=..."),
    "lsf": ("LSF job", "bsub -M ... or -R 'rusage[mem=...]'"),
    "pbs": ("PBS job", "#PBS -l select=...:mem=..."),
    "kubernetes": ("container", "resources.limits.memory in the pod's specification"),
    "cgroup": ("container or job", "docker run --memory=..., resources.limits.memory, or #SBATCH --mem=..."),
}
"""Names of memory limits below the memory of the machine, and how to raise them, by the wording of the message."""
_FEWER_WORKERS: Final = estimate(
    "fewer DataLoader workers (num_workers) and less prefetching", "each worker has its own copy of what it loads"
)
_FEWER_WORKERS_WINDOWS: Final = estimate(
    "fewer DataLoader workers, or fewer other programs", "each worker loads CUDA's libraries, which count in full"
)
_LOAD_WITH_LESS: Final = estimate(
    "load the weights with less host memory: safetensors files, low_cpu_mem_usage=True, device_map='auto', one process "
    "at a time",
    "a checkpoint that is read into host memory first needs its full size there, in each process",
)
_LOAD_IN_A_SERVER: Final = estimate(
    "a smaller or quantized model, less memory for offloading and swap (--cpu-offload-gb, --swap-space), or fewer GPUs "
    "per machine",
    "each worker of the server reads its part of the checkpoint into host memory",
)
_FEWER_PROCESSES: Final = estimate(
    "fewer processes for the data set (num_proc, dataset_num_proc)", "each process has its own copy of the data"
)
_MORE_RAM: Final = estimate(
    "more host memory (RAM) or swap for the machine, container or virtual machine",
    "the memory of the container, or of WSL, may be less than the memory of the machine",
)
_LESS_DATA: Final = estimate(
    "use less host memory: read data in parts, fewer processes or workers, a smaller or quantized model, less CPU "
    "offload",
    "the message does not show what held the memory",
)
_EVICTED: Final = TextVerdict(
    cause=Cause.HOST_MEMORY,
    sentence=(
        "Kubernetes evicted the pod, because the memory of the whole node was nearly used up, not the limit of the pod."
    ),
    remedies=(
        estimate(
            "resources.requests.memory near the real use, a larger node, or fewer pods on the node",
            "Kubernetes evicts the pods first that use more memory than they requested",
        ),
    ),
)
_LARGE_PROCESS_BYTES: Final = 128 * GIB
"""The host memory of one process from which the process itself is the reason, not the number of processes."""
_WORKER_EXITED: Final = TextVerdict(
    cause=Cause.CANNOT_TELL,
    sentence=(
        "A DataLoader worker ended, and the message does not say why: an error in the worker, a missing main guard, or "
        "too little host memory."
    ),
    remedies=(
        estimate("num_workers=0", "the error of the worker then appears in the main process"),
        estimate("fewer workers, or more host memory (RAM)", "if dmesg shows that the system killed the worker"),
    ),
)
_SHARED_BY_BOTH: Final = (
    estimate(
        "use less of the shared memory: a smaller or quantized model, a shorter context, or a lower "
        "gpu_memory_utilization",
        "the GPU uses the memory of the host here: weights, KV cache, the page cache and programs share it",
    ),
    estimate(
        "drop the page cache before loading: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches",
        "files that were read, such as checkpoints, stay in the page cache",
    ),
)


def judge_host(found: FoundMessage) -> TextVerdict:
    """Return the verdict on a request for host memory that failed."""
    message = found.message
    asked = f": {text_of_bytes(message.requested_bytes)} were requested" if message.requested_bytes else ""
    match message.wording:
        case "pinned_memory" | "pinned":
            return TextVerdict(
                cause=Cause.PINNED_MEMORY,
                sentence="Host memory could not be pinned (page-locked); GPU memory did not run out.",
                remedies=(
                    estimate(
                        "pin or offload less: pin_memory=False, fewer offloaded blocks, or a smaller batch",
                        "pinned memory cannot be swapped, so host memory (RAM) must be free for it",
                    ),
                    estimate("raise the limit of locked memory (ulimit -l), or leave WSL", "both limit pinned memory"),
                ),
            )
        case "shared_memory" | "shm_segment":
            return _shared_memory(found)
        case "paging_file":
            return TextVerdict(
                cause=Cause.COMMIT_LIMIT,
                sentence="Host memory ran out, not GPU memory: Windows cannot commit more of it.",
                remedies=(
                    estimate("a larger paging file", "Windows can commit the host's memory plus that file"),
                    _by_phase(found) or _FEWER_WORKERS_WINDOWS,
                ),
            )
    if message.requested_bytes is not None and message.requested_bytes >= BOGUS_BYTES:
        return TextVerdict(
            cause=Cause.BOGUS_SIZE,
            sentence=f"The requested size is impossible for host memory{asked}. Check the code that computes it.",
        )
    return TextVerdict(
        cause=Cause.HOST_MEMORY,
        sentence=f"Host memory ran out, not GPU memory{asked}.",
        remedies=(_by_size(message) or _by_phase(found) or _LESS_DATA, _MORE_RAM) if message.wording != "java" else (),
        notes=(
            "Java's own limit counts as host memory: -Xmx raises it"
            if message.wording == "java"
            else "a limit of the container or the batch system counts as host memory",
        ),
    )


def _shared_memory(found: FoundMessage) -> TextVerdict:
    if found.message.wording == "shm_segment":
        who = "NCCL passes data between the processes of one machine through it"
        why = "a container has 64 MiB of it by default, and NCCL needs about 10 MiB for each pair of processes"
    else:
        who = "DataLoader workers pass batches through it"
        why = "batches in flight = workers x prefetch_factor"
    return TextVerdict(
        cause=Cause.SHARED_MEMORY,
        sentence=f"/dev/shm is full, not the GPU: {who}.",
        remedies=(
            estimate(
                "docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir volume with medium: Memory at "
                "/dev/shm",
                why,
            ),
            estimate("fewer DataLoader workers", "each batch in flight needs its size in /dev/shm")
            if found.message.wording == "shared_memory"
            else estimate("remove old files from /dev/shm", "files of ended processes stay there: df -h /dev/shm"),
        ),
    )


def judge_killed(found: FoundMessage) -> TextVerdict:
    """Return the verdict on a process that was killed."""
    message = found.message
    victim = _VICTIM.search(message.text)
    held = f": process {victim['name']} held {text_of_bytes(int(victim['kib']) * KIB)}" if victim is not None else ""
    by_phase = _by_phase(found)
    if message.wording == "evicted":
        return _EVICTED
    if message.wording == "worker_exited":
        return _WORKER_EXITED
    is_shared = bool({"unified memory", "unified memory by name"} & set(found.context))
    if is_shared and message.wording not in _LIMITED:
        is_sure = message.is_certain and "unified memory" in found.context
        usually = "The system killed the process" if message.is_certain else "The process was killed from outside"
        return TextVerdict(
            cause=Cause.UNIFIED_MEMORY if is_sure else Cause.CANNOT_TELL,
            likely=Cause.UNIFIED_MEMORY,
            sentence=f"{usually}, probably because the memory that GPU and CPU share was full{held}.",
            remedies=_SHARED_BY_BOTH,
            notes=("dmesg -T | grep -i kill shows whether the system did it",),
        )
    if not message.is_certain:
        return TextVerdict(
            cause=Cause.CANNOT_TELL,
            likely=Cause.HOST_MEMORY,
            sentence=(
                "The process was killed from outside (SIGKILL: exit code 137 or -9), usually by the system because "
                "host memory, not GPU memory, was full."
            ),
            remedies=tuple(remedy for remedy in (by_phase, _MORE_RAM) if remedy is not None),
            notes=(
                "dmesg -T | grep -i kill shows whether the system did it; schedulers and users send the same signal",
            ),
        )
    less = (
        _by_victim(victim)
        or by_phase
        or estimate(
            "use less host memory: fewer DataLoader workers, and checkpoints that are loaded by one process at a time",
            "each worker, and each process that loads a checkpoint, has its own copy",
        )
    )
    if message.wording in _LIMITED:
        where, how = _LIMITED[message.wording]
        limit = _limit_of(found)
        return TextVerdict(
            cause=Cause.JOB_LIMIT,
            sentence=(
                f"Host memory ran out, not GPU memory: the {where} reached its memory limit{limit}, and a process was "
                f"killed{held}. The machine may have had free memory."
            ),
            remedies=(
                estimate(f"a higher memory limit ({how})", "the limit counts the memory of all processes and /dev/shm"),
                less,
            ),
        )
    return TextVerdict(
        cause=Cause.HOST_MEMORY,
        sentence=f"Host memory ran out, not GPU memory, and the system killed the process{held}.",
        remedies=(less, _MORE_RAM),
    )


def _by_victim(victim: re.Match[str] | None) -> Remedy | None:
    """Return the advice for a single process that held a large amount of host memory, or None."""
    held_bytes = int(victim["kib"]) * KIB if victim is not None else 0
    if held_bytes < _LARGE_PROCESS_BYTES:
        return None
    return estimate(
        "make that process hold less: read its data in parts or memory-mapped, and keep only what one step needs",
        f"it held {text_of_bytes(held_bytes)} alone, so fewer processes do not help",
    )


def _limit_of(found: FoundMessage) -> str:
    said = found.message.said
    if "limit_kib" in said:
        return f" of {text_of_bytes(int(said['limit_kib']) * KIB)}"
    return f" of {said['limit']}" if "limit" in said else ""


def _by_size(message: Message) -> Remedy | None:
    """Return the advice for a single large request of host memory, or None."""
    if (message.requested_bytes or 0) < _LARGE_ARRAY_BYTES:
        return None
    is_smallest = re.search(r"\bu?int8\b|\bbool\b", message.text) is not None
    narrower = "" if is_smallest else ", in a smaller data type"
    return estimate(
        f"compute or load it in parts (fewer rows, frames or pixels at once){narrower}, and check its shape",
        f"{text_of_bytes(message.requested_bytes or 0)} were requested at once",
    )


def _by_phase(found: FoundMessage) -> Remedy | None:
    """Return the advice that follows from what the program was doing when host memory ran out, or None."""
    phase = situation_of(found).phase
    if phase is FailurePhase.LOADING or "weights" in found.context:
        return _LOAD_IN_A_SERVER if {"vLLM", "SGLang"} & set(found.context) else _LOAD_WITH_LESS
    if "data set processes" in found.context:
        return _FEWER_PROCESSES
    if "data loader" in found.context or "DataLoader" in found.message.text:
        return _FEWER_WORKERS
    if phase is FailurePhase.GATHERING:
        return estimate(
            "save a sharded state dict (torch.distributed.checkpoint), or gather it on rank 0 only",
            "a full state dict in each process needs the size of the whole model in host memory, once per process",
        )
    return None
