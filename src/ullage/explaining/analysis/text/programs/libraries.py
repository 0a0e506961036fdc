"""Explains errors of libraries that allocate GPU memory themselves: onnxruntime, bitsandbytes, Triton, CuPy, RAPIDS
(RMM), faiss.
"""

from typing import Final

from ullage.base.units import BOGUS_BYTES, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.verdict import LEAVE_ROOM, SEE_NVIDIA_SMI, TextVerdict, estimate
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory

ONNXRUNTIME_LIMIT: Final = estimate(
    "gpu_mem_limit and arena_extend_strategy=kSameAsRequested of CUDAExecutionProvider",
    "by default the arena doubles each time it grows, and keeps the memory; the limit leaves memory for other uses",
)
CUPY_FREE: Final = estimate(
    "cupy.get_default_memory_pool().free_all_blocks()", "releases the unused memory of the pool"
)
TRITON_DRIVER: Final = TextVerdict(
    cause=Cause.DISGUISED,
    sentence="CUDA itself had no memory for loading or launching a Triton kernel; the message has no figures.",
    remedies=(LEAVE_ROOM,),
    notes=("an earlier kernel may have caused this error: run with CUDA_LAUNCH_BLOCKING=1 to find it",),
)
RMM: Final = TextVerdict(
    cause=Cause.TRULY_FULL,
    sentence=(
        "RAPIDS (RMM) ran out of GPU memory. The error is called MemoryError, but host memory did not run out. The "
        "message has no figures."
    ),
    remedies=(
        estimate("rmm.reinitialize(managed_memory=True)", "keeps in host memory what does not fit; slower"),
        estimate("rmm.reinitialize(pool_allocator=True)", "fewer driver calls, and less fragmentation"),
    ),
    notes=(SEE_NVIDIA_SMI,),
)


def onnxruntime(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain a failed allocation in onnxruntime. Its message does not say whether GPU or host memory ran out."""
    asked = text_of_bytes(message.requested_bytes or 0)
    if (message.requested_bytes or 0) > BOGUS_BYTES:
        return TextVerdict(
            cause=Cause.BOGUS_SIZE,
            sentence=f"The requested size is impossible: {asked} from onnxruntime. Check the shapes of that node.",
            notes=("possible reasons: a dynamic axis that was not set, or a damaged length",),
        )
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=(
            f"onnxruntime's arena could not get {asked}: of GPU memory if the session runs on CUDA, otherwise of host "
            "memory. The message contains neither the kind of memory nor the free memory."
        ),
        remedies=(
            ONNXRUNTIME_LIMIT,
            estimate("enable_cpu_mem_arena=False", "on the CPU, freed buffers are then returned to the system"),
            estimate("a smaller batch or image", "the node's output grows with the batch or image"),
        ),
        notes=("each session has its own arena; " + SEE_NVIDIA_SMI,),
    )


def bitsandbytes(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain a CUDA error in bitsandbytes. Its message contains a source line number but no sizes."""
    if ".cu" in message.text:
        return TextVerdict(
            cause=Cause.DISGUISED,
            sentence="bitsandbytes could not get GPU memory for one of its kernels; the message has no figures.",
            remedies=(estimate("a smaller batch", "its scratch memory grows with its input"),),
            notes=(SEE_NVIDIA_SMI,),
        )
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=(
            "bitsandbytes could not get managed memory, which a paged optimizer keeps partly on the GPU and partly in "
            "host memory; the message has no figures."
        ),
        remedies=(
            estimate("an optimizer that is not paged: optim='adamw_8bit'", "it needs no managed memory"),
            estimate("more memory for the host or the container", "managed memory counts as host memory too"),
        ),
        notes=("WSL and Windows limit managed memory, however much is free",),
    )


def cupy(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain a failed allocation in CuPy's memory pool. Its message contains the size of the pool."""
    asked, held = message.requested_bytes or 0, message.allocated_bytes or 0
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=(
            f"CuPy requested {text_of_bytes(asked)} and its pool held {text_of_bytes(held)}; the message contains "
            "neither the GPU's memory size nor the used part of the pool."
        ),
        remedies=(CUPY_FREE,),
        notes=(SEE_NVIDIA_SMI,),
    )


def faiss(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain a failed allocation in faiss, which requests memory directly from the driver."""
    asked = text_of_bytes(message.requested_bytes) if message.requested_bytes is not None else "memory"
    where = f" on GPU {message.device}" if message.device is not None else ""
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=f"faiss requested {asked} from the driver{where}, outside of any other allocator, and less was free.",
        remedies=(
            estimate(
                "StandardGpuResources().setTempMemory(64 * 1024 * 1024)",
                "faiss takes 1.5 GiB or 18 % of the GPU for scratch memory when it starts",
            ),
            estimate(
                "a smaller or quantized index (useFloat16, IVF-PQ)", "a flat index takes vectors x dimensions x 4 bytes"
            ),
        ),
        notes=("faiss cannot use the memory that PyTorch has cached in the same process", SEE_NVIDIA_SMI),
    )
