"""Programs that ask the driver themselves: faiss, MXNet, DirectML, Blender's Cycles, CUDA.jl, OpenVINO, Theano."""

from typing import Final

from ullage.base.units import BOGUS_BYTES, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.figure import bytes_of
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory

_NVIDIA_SMI: Final = "other programs may hold the card: see with nvidia-smi"
MXNET_RESERVE: Final = estimate(
    "a smaller batch; MXNET_GPU_MEM_POOL_RESERVE=10", "MXNet's pool keeps what it has; that share stays for libraries"
)
JULIA_RECLAIM: Final = estimate(
    "GC.gc(); CUDA.reclaim()", "arrays that nobody uses are freed when Julia collects, and given back by the second"
)
BLENDER_SCENE: Final = estimate(
    "smaller textures (Simplify), fewer subdivisions, or CPU rendering", "Cycles keeps the whole scene on the card"
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
        notes=("what PyTorch has cached in the same process is not free for faiss", _NVIDIA_SMI),
    )


def mxnet(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge MXNet's pool, without figures."""
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence="MXNet got no memory of the card from the driver; the text does not say how much it asked for.",
        remedies=(MXNET_RESERVE,),
        notes=(_NVIDIA_SMI,),
    )


def directml(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge DirectML, the way to any vendor's card on Windows."""
    asked = f"the {text_of_bytes(message.requested_bytes)} that" if message.requested_bytes is not None else "what"
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=f"The card had less left than {asked} DirectML asked for; the text does not say what it has.",
        remedies=(
            estimate("a smaller batch or image, or half precision", "DirectML frees late and does not split requests"),
        ),
        notes=("Windows' task manager shows who holds the card (dedicated GPU memory)",),
    )


def blender(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge Blender's Cycles, whose scene fits neither the card nor what it may borrow."""
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence="Blender's scene fits neither the card nor the memory that it borrows; there are no figures.",
        remedies=(BLENDER_SCENE,),
        notes=(_NVIDIA_SMI,),
    )


def julia(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge CUDA.jl's error, which says what the card and the pool had, if it is whole."""
    said, total, asked = message.said, message.total_bytes, message.requested_bytes
    if total is None or asked is None or "used_bytes" not in said:
        return TextVerdict(
            cause=Cause.CANNOT_TELL,
            sentence="CUDA.jl found no memory of the card; the text is cut before the figures.",
            remedies=(JULIA_RECLAIM,),
            notes=(_NVIDIA_SMI,),
        )
    free = max(0, total - bytes_of(said["used_bytes"]))
    pool = bytes_of(said["pool_bytes"]) if "pool_bytes" in said else 0
    usable = free + max(0, pool - (message.allocated_bytes or 0))
    figures = f"{text_of_bytes(asked)} were asked for with {text_of_bytes(free)} free"
    if usable >= asked:
        return TextVerdict(
            cause=Cause.FRAGMENTED,
            sentence=(
                f"Memory was there, but not in one piece (CUDA.jl): {figures} and {text_of_bytes(usable - free)} kept "
                "by its pool."
            ),
            remedies=(JULIA_RECLAIM,),
        )
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=f"Memory was truly full (CUDA.jl): {figures} of {text_of_bytes(total)}.",
        remedies=(JULIA_RECLAIM, estimate("a smaller batch", "less is alive at once")),
        notes=(_NVIDIA_SMI,),
    )


def openvino(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge OpenVINO's check of one buffer, which an Intel card's driver allows up to a size of its own."""
    asked = text_of_bytes(message.requested_bytes or 0)
    if (message.requested_bytes or 0) >= BOGUS_BYTES:
        return TextVerdict(
            cause=Cause.BOGUS_SIZE,
            sentence=f"The request makes no sense: OpenVINO was asked for {asked}; look at the shapes of the model.",
            notes=("a dynamic axis without an upper bound, or a damaged length, looks like this",),
        )
    most = message.said.get("most_bytes")
    bound = f" allows {text_of_bytes(bytes_of(most))} at most" if most is not None else " allows less"
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"Not the card's size: OpenVINO asked for one buffer of {asked}, and the card's driver{bound} in one "
            "piece; freeing memory does not help."
        ),
        remedies=(
            estimate(
                "ov::intel_gpu::hint::enable_large_allocations (GPU_ENABLE_LARGE_ALLOCATIONS)",
                "OpenVINO then asks for more than that, where the driver can give it",
            ),
            estimate("a smaller batch, shorter input or lower precision", "the largest tensor grows with each"),
        ),
    )


def theano(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge Theano's error, which is called MemoryError and is the card's."""
    asked = text_of_bytes(message.requested_bytes or 0)
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"The card had less left than the {asked} that Theano asked for, although the error is called MemoryError; "
            "the text does not say what it has."
        ),
        remedies=(estimate("a smaller batch", "what a function keeps grows with it"),),
        notes=(
            "with lib.cnmem (or gpuarray.preallocate) Theano's pool has that share of the card",
            _NVIDIA_SMI,
        ),
    )
