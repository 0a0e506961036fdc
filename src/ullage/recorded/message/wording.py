"""The out-of-memory messages of PyTorch, its libraries and the operating system.

The table covers every wording of torch 2.0 to 2.15 and of the two versions before, and other errors that a shortage of
memory may cause. `ullage.recorded.message` reads texts with this table. The wordings of other programs are in
`ullage.recorded.message.program_wording`.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MessageKind(StrEnum):
    """The kind of an out-of-memory message."""

    ALLOCATOR = "allocator"
    """PyTorch's GPU allocator could not satisfy an allocation."""
    LIMIT = "limit"
    """The allocation exceeded a memory limit of the process. The driver was not asked."""
    ADDRESS_SPACE = "address_space"
    """The addresses ran out, not the GPU memory."""
    BOGUS_SIZE = "bogus_size"
    """The allocation was larger than the memory of any GPU."""
    DRIVER = "driver"
    """A CUDA out-of-memory error from outside PyTorch's allocator. It contains no sizes."""
    LIBRARY = "library"
    """An error of a CUDA library that usually means too little GPU memory."""
    HOST = "host"
    """Host memory ran out, not GPU memory."""
    KILLED = "killed"
    """The process was killed. If `is_certain` is True, host memory had run out."""
    ON_CHIP = "on_chip"
    """A kernel needs more shared memory than the GPU has. Its main memory did not run out."""
    WARNING = "warning"
    """An allocation failed, but the program tries again in another way and continues."""
    PROGRAM = "program"
    """Another program's message about its own GPU memory. `Message.backend` names the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A known form of out-of-memory message: a fixed text to search for, and patterns for the text around it."""

    find: str
    before: tuple[str, ...]
    """The possible beginnings of the message, such as "CUDA " or "HIP ". The text `find` follows directly."""
    after: re.Pattern[str]
    """The pattern for the text `find` and what follows it. Its groups are `size` (the requested bytes) and `device`."""
    at_start: bool
    """Whether the message must begin a line or follow an exception's name."""
    kind: MessageKind
    wording: str
    is_certain: bool
    """Whether the message says explicitly that memory ran out, and does not only suggest it."""
    backend: str | None
    has_sizes: bool
    """Whether the message contains sizes in one of the forms of `SIZES`."""
    figures: tuple[re.Pattern[str], ...] = ()
    """Patterns for values in the text around the message.

    The group names say where each value is stored: in a field of `Message`, or in `Message.said`.
    """


def words(
    kind: MessageKind,
    wording: str,
    find: str,
    after: str = "",
    *,
    before: tuple[str, ...] = ("",),
    backend: str | None = None,
    at_start: bool = False,
    likely: bool = False,
    has_sizes: bool = False,
    figures: tuple[str, ...] = (),
) -> Words:
    """Return the description of a known out-of-memory message.

    Args:
        likely: whether the message only suggests that memory ran out, and does not say so.
    """
    return Words(
        find=find,
        before=before,
        after=re.compile(re.escape(find) + after, re.ASCII),
        at_start=at_start,
        kind=kind,
        wording=wording,
        is_certain=not likely,
        backend=backend,
        has_sizes=has_sizes,
        figures=tuple(re.compile(pattern, re.ASCII | re.IGNORECASE) for pattern in figures),
    )


_CARDS: Final = ("CUDA ", "HIP ", "XPU ", "NPU ", "MUSA ")
_LIBRARIES: Final = ("CUBLAS", "CUDNN", "CUSOLVER", "CUSPARSE", "CURAND", "HIPBLAS", "HIPSPARSE")
_STATUS: Final = tuple(f"{name}_STATUS" for name in _LIBRARIES)
_EXITS: Final = (
    "exit",
    "Exit",
    "exited with",
    "Exited with",
    "exit_",
    "exit ",
    "Exit ",
    "exited with ",
    "exited with exit ",
)
_END: Final = r"(?=\s*(?:\n|\Z))"
_SEARCH: Final = r"(?:\s{1,3}Search for .(?:cuda|hip)Error\w{1,40})?"
# Matches the end of a line whose figures are on the next line. If the log puts a rank or a time at the start of the
# next line, this is matched as well.
_BELOW: Final = r"(?=\.?\s{0,3}\n(?:(?!out of memory)[^\n]){0,100}?(?:Tried to|Allocation was))"
_CALL: Final = r"\w{0,30}(?:\([^)\n]{0,120}\))?(?: failed)?(?: with)?(?: error)?[:,]? {1,3}(?:\(2\) )?out of memory"
_AT: Final = r"[^\s,]{1,300}?[:(]\d{1,6}[^\n]{0,60}?out of memory"
_CARDS_OWN: Final = r":[^\n]{0,80}?(?:[Cc][Uu][Dd][Aa]|cuMem|GPU|device memory)"

TABLE: Final = (
    # "If CUDA out of memory happens, ..." is advice. An error continues with the requested size, or it is the whole
    # line.
    words(
        MessageKind.ALLOCATOR,
        "allocator",
        "out of memory",
        rf"(?:\.\s{{1,40}}(?=Tried to|Allocation was)|{_BELOW})",
        before=_CARDS,
        has_sizes=True,
    ),
    words(
        MessageKind.ALLOCATOR,
        "allocator",
        "out of memory",
        r"(?=\s*(?:[.(:!]|\n|\Z))",
        before=_CARDS,
        at_start=True,
        has_sizes=True,
    ),
    words(MessageKind.ALLOCATOR, "allocator", "out of the memory. ", r"(?=Tried to)", before=_CARDS, has_sizes=True),
    words(
        MessageKind.ALLOCATOR,
        "async",
        "Allocation on device",
        r"[ \x01-\x1f]{0,3}(?P<device>\d{1,4})?[ \t]{0,3}"
        r"(?:would exceed allowed memory\b(?:\. \(out of memory\))?|(?=\r?\n|\Z))",
        backend="CUDA",
        has_sizes=True,
    ),
    words(
        MessageKind.ALLOCATOR,
        "allocator",
        "can NOT allocate memory block with size larger than",
        r" \d{1,4}GB! (?=Tried to)",
        before=("platform ",),
        backend="XPU",
        has_sizes=True,
    ),
    words(MessageKind.ALLOCATOR, "mps", "out of memory", before=("MPS backend ",), has_sizes=True),
    # The exception's name alone ends a line in a table of errors, or in a text that was translated except for the name.
    words(
        MessageKind.ALLOCATOR,
        "unknown",
        "OutOfMemoryError",
        r"(?=[*`\"'|\s]{0,6}(?:\n|\Z))",
        before=("torch.cuda.", "torch."),
        likely=True,
    ),
    words(MessageKind.HOST, "java", "OutOfMemoryError: ", r"[^\n]{1,100}", before=("java.lang.",)),
    words(MessageKind.ALLOCATOR, "unknown", "OutOfMemoryError: ", r"[^\n]{1,100}", has_sizes=True),
    words(
        MessageKind.ADDRESS_SPACE,
        "address_space",
        "[ExpandableSegmentVA]",
        r" Failed to reserve (?P<size>\d{1,20})?",
        backend="CUDA",
        has_sizes=True,
    ),
    words(MessageKind.WARNING, "preempting", "Preemptively rejecting allocation:", backend="CUDA", has_sizes=True),
    words(
        MessageKind.WARNING,
        "asking_again",
        " failed with OOM on device ",
        r"(?P<device>\d{1,4})(?: while trying to (?:map|allocate) (?P<size>\d{1,20}) bytes)?",
        before=("memory mapping", "memory allocation"),
        backend="CUDA",
    ),
    words(
        MessageKind.DRIVER,
        "cuda_error",
        "out of memory",
        _SEARCH,
        before=(
            "CUDA error: ",
            "CUDA driver error: ",
            "CUDA runtime error: ",
            "cuda runtime error (2) : ",
            "HIP error: ",
            # how other programs print the driver's error code
            "CUDA failed with error ",
            "cuda failed with error 2 ",
            "CUDA failure 2: ",
            "CUDA error 2: ",
            "CUDA Error: ",
            "cuda error: ",
            "Cuda error: ",
            "CUDA: ",
            "CUDA ERROR: ",
            "CUDA Runtime Error: ",
            "CUDA API error: ",
            "CUDA Driver API error: ",
            "CUDA failure: ",
            "CUDA error (2): ",
            "CUDA error 2 - ",
            "GPUassert: ",
        ),
    ),
    words(MessageKind.DRIVER, "cuda_error", "cudaMalloc", _CALL, backend="CUDA"),
    words(MessageKind.DRIVER, "cuda_error", "Cuda error: 2[cudaMalloc", backend="CUDA"),  # nvdiffrast
    words(MessageKind.DRIVER, "cuda_error", "cuMem", _CALL, backend="CUDA"),
    words(MessageKind.DRIVER, "cuda_error", "Out of memory in cu", r"\w{3,40}\(", backend="CUDA"),
    words(MessageKind.DRIVER, "cuda_error", "CUDA error at ", _AT, backend="CUDA"),
    words(MessageKind.DRIVER, "cuda_error", "CUDA error in ", _AT, backend="CUDA"),
    words(MessageKind.DRIVER, "cuda_error", "error: 2 (out of memory)", backend="CUDA"),
    words(MessageKind.DRIVER, "cuda_error", "cudaErrorMemoryAllocation", backend="CUDA"),
    words(MessageKind.DRIVER, "cuda_error", "hipErrorOutOfMemory", backend="HIP"),
    words(MessageKind.DRIVER, "cuda_driver", "_ERROR_OUT_OF_MEMORY", before=("CUDA",)),
    # Thrust's errors concern the GPU, although one of them is called bad_alloc; so do errors at lines of .cu files.
    words(MessageKind.DRIVER, "cuda_error", "thrust::system::detail::bad_alloc", backend="CUDA"),
    words(MessageKind.DRIVER, "cuda_error", "parallel_for failed: out of memory", backend="CUDA"),
    words(MessageKind.DRIVER, "cuda_error", ".cu(", r"\d{1,6}\): out of memory", backend="CUDA"),
    words(MessageKind.DRIVER, "cuda_error", ".cuh(", r"\d{1,6}\): out of memory", backend="CUDA"),
    words(MessageKind.DRIVER, "cuda_error", "CUDA error 2 out of memory", backend="CUDA"),
    words(MessageKind.DRIVER, "cuda_error", "Gpu API call) out of memory in function", before=("217:",)),
    words(MessageKind.DRIVER, "cuda_error", "Gpu API call (out of memory)", backend="OPENCV"),
    words(MessageKind.DRIVER, "vulkan", "vkAllocateMemory failed", r" ?\(?-2\b", backend="VULKAN"),
    words(MessageKind.DRIVER, "vulkan", "VK_ERROR_OUT_OF_DEVICE_MEMORY", backend="VULKAN"),
    words(MessageKind.DRIVER, "vulkan", "ErrorOutOfDeviceMemory", backend="VULKAN"),
    words(MessageKind.HOST, "vulkan_host", "vkAllocateMemory failed", r" ?\(?-1\b", backend="VULKAN"),
    words(MessageKind.HOST, "vulkan_host", "VK_ERROR_OUT_OF_HOST_MEMORY", backend="VULKAN"),
    words(
        MessageKind.HOST, "pinned", "cuda_host_mem.cpp:", r"\d{1,6}: error: [^\n]{1,40}out of memory", backend="OPENCV"
    ),
    words(MessageKind.HOST, "compiler", "ptxas fatal", r"[^\n]{0,20}Memory allocation failure"),
    words(MessageKind.HOST, "compiler", "catastrophic error", r" ?: out of memory"),
    words(MessageKind.HOST, "compiler", "virtual memory exhausted"),
    words(MessageKind.HOST, "compiler", "LLVM ERROR: out of memory"),
    words(MessageKind.DRIVER, "level_zero", "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", backend="LEVEL_ZERO"),
    words(MessageKind.DRIVER, "level_zero", "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", backend="LEVEL_ZERO"),
    words(MessageKind.HOST, "level_zero_host", "ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY", backend="LEVEL_ZERO"),
    words(MessageKind.DRIVER, "level_zero", "UR_RESULT_ERROR_OUT_OF_RESOURCES", backend="LEVEL_ZERO", likely=True),
    words(MessageKind.HOST, "level_zero_host", "UR_RESULT_ERROR_OUT_OF_HOST_MEMORY", backend="LEVEL_ZERO"),
    words(MessageKind.DRIVER, "cann", "Memory_Allocation_Failure(EL0004)", backend="NPU"),
    words(
        MessageKind.DRIVER,
        "cann",
        "rtMalloc fail",
        r"[^\n]{0,80}?size:(?P<size>\d{1,15})",
        before=("Call ",),
        backend="NPU",
    ),
    words(MessageKind.DRIVER, "amdgpu", "amdgpu: Failed to allocate a buffer", backend="VULKAN"),
    words(
        MessageKind.ALLOCATOR,
        "metal_buffer",
        "Invalid buffer size: ",
        r"\d[\d.]{0,12} [KMGT]i?B",
        backend="MPS",
        figures=(r"buffer size: (?P<requested_bytes>\d[\d.]{0,12} [KMGT]i?B)",),
    ),
    words(
        MessageKind.ALLOCATOR,
        "metal_buffer",
        "[metal::malloc] Attempting to allocate ",
        r"(?P<size>\d{1,18}) bytes",
        backend="MPS",
        figures=(r"maximum allowed buffer size of (?P<most_bytes>\d{1,18}) bytes",),
    ),
    words(
        MessageKind.ALLOCATOR,
        "metal_buffer",
        "total bytes of NDArray > 2**32",
        backend="MPS",
        figures=(r"NDArray > 2\*\*(?P<requested_power>32)",),
    ),
    words(MessageKind.DRIVER, "metal_command", "kIOGPUCommandBufferCallbackErrorOutOfMemory", backend="METAL"),
    words(
        MessageKind.DRIVER,
        "metal_command",
        "Command buffer execution failed: Insufficient Memory",
        before=("[METAL] ", ""),
        backend="METAL",
    ),
    words(MessageKind.DRIVER, "kernel_driver", "[NV_ERR_NO_MEMORY]", before=("Out of memory ",), backend="NVRM"),
    words(
        MessageKind.HOST,
        "library_host",
        "_HOST_ALLOCATION_FAILED",
        before=("CUDNN_STATUS_INTERNAL_ERROR", "CUDNN_STATUS"),
    ),
    words(MessageKind.LIBRARY, "alloc_failed", "rocblas_status_memory_error", backend="ROCBLAS"),
    words(MessageKind.LIBRARY, "alloc_failed", "the resource allocation failed", backend="CUBLAS", likely=True),
    words(MessageKind.BOGUS_SIZE, "overflow", "Storage size calculation overflowed"),
    words(MessageKind.LIBRARY, "alloc_failed", "_ALLOC_FAILED", r"\b", before=(*_STATUS, "CUFFT", "HIPFFT")),
    words(
        MessageKind.LIBRARY,
        "alloc_failed",
        "_ALLOCATION_FAILED",
        r"\b",
        before=("CURAND_STATUS", "CUDNN_STATUS_INTERNAL_ERROR_DEVICE"),
    ),
    words(MessageKind.LIBRARY, "not_initialized", "_STATUS_NOT_INITIALIZED", r"\b", before=_LIBRARIES, likely=True),
    words(
        MessageKind.LIBRARY,
        "internal_error",
        "_STATUS_INTERNAL_ERROR",
        r"\b",
        before=("CUDNN", "CUSOLVER"),
        likely=True,
    ),
    words(
        MessageKind.LIBRARY,
        "internal_error",
        "create cublas handle: CUBLAS_STATUS_INTERNAL_ERROR",
        backend="CUBLAS",
        likely=True,
    ),
    words(MessageKind.LIBRARY, "internal_error", "_INTERNAL_ERROR", r"\b", before=("CUFFT",), likely=True),
    words(
        MessageKind.LIBRARY,
        "insufficient_resources",
        "_STATUS_INSUFFICIENT_RESOURCES",
        r"\b",
        before=("CUSPARSE",),
        likely=True,
    ),
    words(MessageKind.LIBRARY, "no_algorithm", "Unable to find a valid cuDNN algorithm", backend="CUDNN", likely=True),
    words(
        MessageKind.LIBRARY,
        "no_algorithm",
        " was unable to find an engine",
        before=("GET", "FIND"),
        backend="CUDNN",
        likely=True,
    ),
    words(MessageKind.LIBRARY, "nccl", "Cuda failure ", r"(?:\d{1,3} )?'out of memory", backend="NCCL"),
    words(
        MessageKind.LIBRARY,
        "nccl",
        "Failed to CUDA calloc",
        r"(?: async)?(?: (?P<size>\d{1,18}) bytes)?",
        backend="NCCL",
    ),
    words(
        MessageKind.LIBRARY,
        "nvml",
        "INTERNAL ASSERT FAILED at",
        r"[\s\S]{0,160}?CUDACachingAllocator\.cpp",
        before=("NVML_SUCCESS == r ", "nvmlInit_v2_() "),
        backend="NVML",
    ),
    words(
        MessageKind.HOST,
        "cpu_allocator",
        "DefaultCPUAllocator: ",
        r"(?:can't allocate|not enough) memory: you tried to allocate (?P<size>\d{1,20})",
    ),
    words(MessageKind.HOST, "cpu_allocator", "Torch: not enough memory: you tried to allocate "),
    words(
        MessageKind.HOST,
        "numpy",
        "Unable to allocate ",
        r"[\d.]{1,20} [KMGTP]i?B for (?:an )?array",
        figures=(r"allocate (?P<requested_bytes>\d[\d.]{0,12} ?[KMGT]i?B) for",),
    ),
    # The numbers alone are matched, because the operating system writes the rest in the user's language.
    words(MessageKind.HOST, "errno", "[Errno 12] ", r"[^\n\"']{3,60}"),
    words(MessageKind.HOST, "paging_file", "[WinError 1455] ", r"[^\n\"']{3,90}"),
    # Libraries written in Rust (safetensors, tokenizers) put the number of the system's error last.
    words(MessageKind.HOST, "paging_file", "(os error 1455)"),
    words(MessageKind.HOST, "errno", "(os error 12)"),
    # Without the text before it, error 8 of Linux is another one: a program for another processor.
    words(MessageKind.HOST, "errno", "Not enough memory resources are available"),
    words(MessageKind.HOST, "errno", "[WinError 8] ", r"[^\n\"']{3,90}"),
    words(MessageKind.HOST, "paging_file", "[WinError 1450] ", r"[^\n\"']{3,90}"),
    *(
        words(MessageKind.HOST, "paging_file", find)
        for find in (
            *("paging file is too small", "Auslagerungsdatei ist zu klein", "fichier de pagination est insuffisant"),
            *("archivo de paginación es demasiado pequeño", "file di paging sono insufficienti", "页面文件太小"),
            *("Файл подкачки слишком мал", "ページング ファイルが小さすぎる", "페이징 파일이 너무 작"),
        )
    ),
    words(
        MessageKind.HOST,
        "errno",
        "annot allocate memory",
        before=("OSError: C", "fork: C", "mmap: C", "malloc: C", "fork: c"),
    ),
    words(MessageKind.HOST, "session", "session crashed after using all available RAM"),
    words(MessageKind.HOST, "session", "notebook tried to allocate more memory than is available"),
    words(MessageKind.HOST, "mmap", "unable to mmap ", r"(?P<size>\d{1,18}) bytes"),
    words(MessageKind.HOST, "memory_error", "MemoryError", rf"(?:(?=:)(?!{_CARDS_OWN})|{_END})", at_start=True),
    words(MessageKind.HOST, "bad_alloc", "std::bad_alloc", rf"(?!{_CARDS_OWN})"),
    words(MessageKind.HOST, "pinned_memory", "rror while trying to pin memory"),
    words(MessageKind.HOST, "shared_memory", "workers are out of shared memory"),
    words(MessageKind.HOST, "shared_memory", "insufficient shared memory (shm)"),
    words(MessageKind.HOST, "shared_memory", "unable to write to file </torch_"),
    words(MessageKind.HOST, "shared_memory", "is killed by signal: Bus error"),
    words(MessageKind.HOST, "shared_memory", "request exceeds memory available in /dev/shm"),
    words(MessageKind.HOST, "host_check", "emory requirement for model exceeds total system memory"),
    words(MessageKind.HOST, "shm_segment", "shared memory segment /dev/shm/", r"\S{1,80}", backend="NCCL"),
    words(
        MessageKind.HOST, "shm_segment", "failed to extend /dev/shm/", r"\S{1,80} to (?P<size>\d{1,15})", backend="NCCL"
    ),
    # ComfyUI's report on an error
    words(MessageKind.HOST, "memory_error", "MemoryError: ", rf"(?!{_CARDS_OWN})", before=("Message:** ", "Message: ")),
    words(
        MessageKind.KILLED,
        "cgroup",
        "ut of memory: Kill",
        r"(?:ed)? process",
        before=("Memory cgroup o",),
        figures=(r"limit (?P<limit_kib>\d{1,15})kB",),
    ),
    words(MessageKind.KILLED, "kernel", "ut of memory: Kill", r"(?:ed)? process", before=("O", "o")),
    words(
        MessageKind.KILLED,
        "cgroup",
        " invoked oom-killer",
        r"[^\0]{1,4000}?(?:CONSTRAINT_MEMCG|Memory cgroup out of memory)",
        figures=(r"memory: usage \d{1,15}kB, limit (?P<limit_kib>\d{1,15})kB",),
    ),
    words(MessageKind.KILLED, "kernel", " invoked oom-killer"),
    words(MessageKind.KILLED, "kernel", "memorystatus: killing ", r"[^\n]{1,120}"),
    words(MessageKind.KILLED, "slurm", "xceeded job memory limit"),
    words(MessageKind.KILLED, "slurm", "xceeded step memory limit"),
    words(MessageKind.KILLED, "slurm", " exceeded memory limit (", r"\d{1,15} > \d{1,15}\)[^\n]{0,20}being killed"),
    words(MessageKind.KILLED, "lsf", "TERM_MEMLIMIT"),
    words(MessageKind.KILLED, "pbs", "job killed: mem ", r"\d[^\n]{1,20}exceeded limit"),
    words(MessageKind.KILLED, "pbs", "job killed: vmem ", r"\d[^\n]{1,20}exceeded limit"),
    words(MessageKind.KILLED, "evicted", "node was low on resource: memory"),
    words(MessageKind.KILLED, "kubernetes", "ontainer killed due to memory usage"),
    words(MessageKind.KILLED, "kubernetes", "emory limit of ", r"(?P<limit>\d[\d.]{0,12} ?[KMG]i?B) exceeded"),
    words(MessageKind.KILLED, "kernel", "ystemd-oomd", r"[^\n]{0,10} [Kk]illed [^\n]{1,80}"),
    words(MessageKind.KILLED, "kernel", "oom-kill:constraint=CONSTRAINT_NONE"),
    words(MessageKind.KILLED, "cgroup", "oom-kill:constraint=CONSTRAINT_MEMCG"),
    words(MessageKind.KILLED, "slurm", "step tasks have been OOM Killed"),
    words(MessageKind.KILLED, "slurm", "oom_kill event"),
    words(MessageKind.KILLED, "slurm", "oom-kill event"),
    words(
        MessageKind.KILLED,
        "kubernetes",
        "OOMKilled",
        r"(?!\w|\"?\s{0,3}[:=]\s{0,3}(?:false|null))",
        figures=(r"Limits:.{0,200}?\bmemory: {1,12}(?P<limit>\d{1,12}[KMGT]?i?)\b",),
    ),
    words(MessageKind.KILLED, "killed", "Killed", _END, at_start=True, likely=True),
    *(
        words(MessageKind.KILLED, "killed", killed, _END, at_start=True, likely=True)
        for killed in (
            "已杀死",
            "已砍掉",
            "Getötet",
            "Processus arrêté",
            "Убито",
            "強制終了",
            "죽었음",
            "Terminado (killed)",
        )
    ),
    words(MessageKind.KILLED, "killed", " Killed :9", likely=True),
    words(MessageKind.KILLED, "killed", "subprocesses has abruptly died during map operation", likely=True),
    words(
        MessageKind.KILLED, "worker_exited", "DataLoader worker (pid", r"[^\n]{1,60}?exited unexpectedly", likely=True
    ),
    words(MessageKind.KILLED, "exit_code", "return code", r" ?[=:]? ?-9(?![\d.])", likely=True),
    words(MessageKind.KILLED, "killed", " Killed ", r" {4,}(?=\S)", likely=True),  # bash, for a line of a script
    # After a progress bar that has not ended its line
    words(MessageKind.KILLED, "killed", "]Killed", _END, likely=True),
    # bash on macOS, for a line of a script
    words(MessageKind.KILLED, "killed", " Killed: 9", r" {4,}(?=\S)", likely=True),
    words(MessageKind.KILLED, "killed", "zsh: killed", r" {4,}(?=\S)", likely=True),
    words(MessageKind.KILLED, "killed", " killed ", r" {3,}(?=python|torchrun|accelerate)", likely=True),
    words(MessageKind.KILLED, "killed", "is killed by signal: Killed", likely=True),
    words(MessageKind.KILLED, "exit_code", "code 137", r"\b", before=_EXITS, likely=True),
    words(MessageKind.KILLED, "exit_code", "code: 137", r"\b", before=_EXITS, likely=True),
    words(MessageKind.KILLED, "exit_code", "Code: 137", r"\b", before=("Exit ", "exit "), likely=True),
    words(MessageKind.KILLED, "exit_code", 'ExitCode": 137', r"\b", likely=True),
    words(MessageKind.KILLED, "exit_code", "status 137", r"\b", before=_EXITS, likely=True),
    words(MessageKind.KILLED, "exit_code", "exitcode", r"\W{1,12}(?:-9|137)\b", likely=True),
    words(
        MessageKind.KILLED,
        "exit_code",
        "SIGKILL",
        r"\b",
        before=("Signals.", "ignal 9 (", "ignal: ", "with signal ", "by signal "),
        likely=True,
    ),
    words(
        MessageKind.ON_CHIP,
        "triton",
        "out of resource: shared memory",
        r",? Required: (?P<size>\d{1,12})",
        backend="TRITON",
        figures=(r"Hardware limit: ?(?P<limit_bytes>\d{1,12})",),
    ),
    words(
        MessageKind.ON_CHIP,
        "triton",
        "out of resource: ",
        r"\w{1,120}\s{1,4}(?:[^\n]{0,80}?\s)?Required: (?P<size>\d{1,12})",
        backend="TRITON",
        figures=(r"Hardware limit: ?(?P<limit_bytes>\d{1,12})",),
    ),
    words(
        MessageKind.ON_CHIP,
        "triton",
        "Shared memory size limit exceeded: ",
        r"requested (?P<size>\d{1,12}), available: \d{1,12}",
        backend="JAX",
        figures=(r"available: (?P<limit_bytes>\d{1,12})",),
    ),
)
_SIZE: Final = r"(\d[\d.]{0,24} ?(?:bytes|[KMGT]i?B)\b)"
SIZES: Final = {
    name: re.compile("|".join(pattern.replace("SIZE", _SIZE) for pattern in patterns), re.ASCII)
    for name, patterns in {
        "requested_bytes": (r"Tried to allocate SIZE", r"[Rr]equested(?: size)? ?:? SIZE"),
        "total_bytes": (r"total capaci?ty of SIZE", r"SIZE total capacity", r"Device limit ?: SIZE", r"% of SIZE"),
        "free_bytes": (r"of which SIZE is free", r"SIZE free\b", r"Free \(according to CUDA\) ?: SIZE"),
        "process_bytes": (r"this process has SIZE memory in use",),
        "allowed_bytes": (r"SIZE allowed", r"max allowed: SIZE", r"fraction\) ?: SIZE", r"memory limit \(SIZE"),
        "allocated_bytes": (
            r"SIZE is allocated by PyTorch",
            r"SIZE already allocated",
            r"[Cc]urrently allocated ?: SIZE",
            r"MPS allocated: SIZE",
        ),
        "private_pools_bytes": (r"with SIZE allocated in private pools",),
        # Messages are often cut within this part.
        "unallocated_bytes": (
            r"SIZE (?:is|are) reserved by PyTorch but un",
            r"SIZE is res",
            r"allocated by PyTorch,? and SIZE",
            r"SIZE cached",
        ),
        "reserved_bytes": (r"SIZE reserved in total", r"total_allocated_memory \(SIZE"),
        "other_allocations_bytes": (r"other allocations: SIZE",),
        "reserve_bytes": (r"expandable-segment reserve of SIZE",),
    }.items()
}
"""Patterns for the sizes in out-of-memory messages. Torch 2.1 misspells capacity as "capacty"."""
DEVICE: Final = re.compile(r"\b(?:GPU|NPU|XPU|[Dd]evice) {1,2}(\d{1,4})\b", re.ASCII)
PROCESS: Final = re.compile(rf"\bProcess (\d{{1,10}}) has {_SIZE} memory in use", re.ASCII)
