"""Libraries beside PyTorch with memory of their own: onnxruntime, bitsandbytes, Triton, CuPy, RAPIDS (RMM), faiss."""

from typing import Final

from ullage.base.units import BOGUS_BYTES, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.verdict import LEAVE_ROOM, SEE_NVIDIA_SMI, TextVerdict, estimate
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory

ONNXRUNTIME_LIMIT: Final = estimate(
    "gpu_mem_limit and arena_extend_strategy=kSameAsRequested of CUDAExecutionProvider",
    "otherwise the arena doubles each time it grows, and keeps that; the limit leaves room for others",
)
CUPY_FREE: Final = estimate(
    "cupy.get_default_memory_pool().free_all_blocks()", "gives back what the pool keeps and nobody uses"
)
TRITON_DRIVER: Final = TextVerdict(
    cause=Cause.DISGUISED,
    sentence="CUDA itself had no memory for loading or launching a Triton kernel; the text has no figures.",
    remedies=(LEAVE_ROOM,),
    notes=("this may be the error of an earlier kernel: a run with CUDA_LAUNCH_BLOCKING=1 shows which",),
)
RMM: Final = TextVerdict(
    cause=Cause.TRULY_FULL,
    sentence=(
        "The card's memory ran out for RAPIDS (RMM), not the machine's, although the error is called MemoryError; the "
        "text has no figures."
    ),
    remedies=(
        estimate("rmm.reinitialize(managed_memory=True)", "what does not fit is kept in the machine's memory, slower"),
        estimate("rmm.reinitialize(pool_allocator=True)", "fewer requests to the driver, and less lost between them"),
    ),
    notes=(SEE_NVIDIA_SMI,),
)


def onnxruntime(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge a buffer that onnxruntime's arena could not get: of the card or of the machine, the text does not say."""
    asked = text_of_bytes(message.requested_bytes or 0)
    if (message.requested_bytes or 0) > BOGUS_BYTES:
        return TextVerdict(
            cause=Cause.BOGUS_SIZE,
            sentence=f"The request makes no sense: onnxruntime was asked for {asked}; look at the shapes of that node.",
            notes=("a dynamic axis that was not set, or a damaged length, looks like this",),
        )
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=(
            f"onnxruntime's arena could not get {asked}: of the card if the session runs on CUDA, else of the machine; "
            "the text does not say which, nor what was free."
        ),
        remedies=(
            ONNXRUNTIME_LIMIT,
            estimate("enable_cpu_mem_arena=False", "on the CPU: freed buffers go back to the system"),
            estimate("a smaller batch or image", "the node's output grows with it"),
        ),
        notes=("each session has an arena of its own; " + SEE_NVIDIA_SMI,),
    )


def bitsandbytes(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge an error of CUDA within bitsandbytes, which names only a line of its source."""
    if ".cu" in message.text:
        return TextVerdict(
            cause=Cause.DISGUISED,
            sentence="bitsandbytes got no memory of the card for a kernel of its own; the text has no figures.",
            remedies=(estimate("a smaller batch", "its scratch memory grows with what it works on"),),
            notes=(SEE_NVIDIA_SMI,),
        )
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=(
            "bitsandbytes could not get managed memory, which a paged optimizer keeps partly on the card and partly in "
            "the machine's memory; the text has no figures."
        ),
        remedies=(
            estimate("an optimizer that is not paged: optim='adamw_8bit'", "it needs no managed memory"),
            estimate("more memory for the machine or the container", "managed memory counts there too"),
        ),
        notes=("under WSL and Windows managed memory is limited, whatever is free",),
    )


def cupy(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge CuPy's pool, which says what it holds."""
    asked, held = message.requested_bytes or 0, message.allocated_bytes or 0
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=(
            f"CuPy asked for {text_of_bytes(asked)} and its pool held {text_of_bytes(held)}; the text does not say "
            "what the card has, nor how much of the pool was in use."
        ),
        remedies=(CUPY_FREE,),
        notes=(SEE_NVIDIA_SMI,),
    )


def faiss(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge faiss, which asks the driver beside what PyTorch has taken."""
    asked = text_of_bytes(message.requested_bytes) if message.requested_bytes is not None else "memory"
    where = f" on card {message.device}" if message.device is not None else ""
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=f"faiss asked the driver for {asked}{where}, outside of any other allocator, and less was free.",
        remedies=(
            estimate(
                "StandardGpuResources().setTempMemory(64 * 1024 * 1024)",
                "faiss takes 1.5 GiB or 18 % of the card for scratch memory at the start",
            ),
            estimate("a smaller or quantized index (useFloat16, IVF-PQ)", "a flat index is vectors x dimensions x 4"),
        ),
        notes=("what PyTorch has cached in the same process is not free for faiss", SEE_NVIDIA_SMI),
    )
