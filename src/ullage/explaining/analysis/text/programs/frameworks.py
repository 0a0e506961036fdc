"""Other frameworks and libraries with an allocator of their own: JAX, onnxruntime, Paddle, CuPy, RMM, MLX, XGBoost."""

from typing import Final

from ullage.base.units import BOGUS_BYTES, GIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate, hold_less
from ullage.recorded.message.figure import bytes_of
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory

_NVIDIA_SMI: Final = "other programs may hold the card: see with nvidia-smi"
_SMALL_BYTES: Final = GIB // 4
"""A request below this that fails says that the card was taken, rather than that this program is too large."""


def jax_pool(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge a request that XLA's pool could not satisfy; the text does not say what the pool had."""
    asked = text_of_bytes(message.requested_bytes or 0)
    small = message.requested_bytes is not None and message.requested_bytes < _SMALL_BYTES
    plan = message.said.get("program_bytes")
    notes = [f"XLA's plan of this program needs {text_of_bytes(bytes_of(plan))} in all"] if plan else []
    notes.append("jax.profiler.save_device_memory_profile() shows what is alive; " + _NVIDIA_SMI)
    larger = estimate(
        "XLA_PYTHON_CLIENT_MEM_FRACTION=.95",
        "XLA's pool is 75 % of the card by default, and it asks for no more than that",
    )
    grown = estimate(
        "XLA_PYTHON_CLIENT_PREALLOCATE=false", "the pool then grows as needed, which other programs on the card allow"
    )
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=(
            f"XLA's pool of the card's memory (JAX) could not give {asked}; the text does not say what the pool or the "
            "card had" + (", but so little fails where another program has taken the card." if small else ".")
        ),
        remedies=(
            *((grown, larger) if small else (larger, grown)),
            estimate("a smaller batch, jax.checkpoint, or donate_argnums", "less alive at once"),
        ),
        notes=tuple(notes),
    )


def jax_driver_pool(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge a request that CUDA's own pool could not satisfy for JAX (the allocator cuda_async), which has figures."""
    asked, free, total = message.requested_bytes, message.free_bytes, message.total_bytes
    smaller = estimate("a smaller batch, jax.checkpoint, or donate_argnums", "less alive at once")
    if asked is None or free is None or total is None:
        return TextVerdict(
            cause=Cause.CANNOT_TELL,
            sentence=f"CUDA's pool could not give JAX {text_of_bytes(asked or 0)}; the text has no more figures.",
            remedies=(smaller,),
            notes=(_NVIDIA_SMI,),
        )
    sums = f"JAX asked for {text_of_bytes(asked)} with {text_of_bytes(free)} of {text_of_bytes(total)} free"
    if asked > total:
        return TextVerdict(
            cause=Cause.TRULY_FULL,
            sentence=f"{sums}: more than the whole card has, so that no setting helps.",
            remedies=(smaller, estimate("shard over more cards", "each then has a part of weights and activations")),
        )
    if asked <= free:
        return TextVerdict(
            cause=Cause.FRAGMENTED,
            sentence=f"{sums}: enough, but CUDA's pool found no place for it in one piece.",
            remedies=(
                estimate("XLA_PYTHON_CLIENT_ALLOCATOR=default", "XLA's own pool takes its part of the card at once"),
                smaller,
            ),
            notes=(_NVIDIA_SMI,),
        )
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=f"Memory was truly full: {sums}.",
        remedies=(smaller,),
        notes=(_NVIDIA_SMI,),
    )


def jax_shared(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge a kernel that needs more of a block's shared memory than the chip has."""
    figures = ""
    if {"needed", "limit"} <= set(message.said):
        needed, limit = (text_of_bytes(int(message.said[name])) for name in ("needed", "limit"))
        figures = f": a kernel needs {needed} a block, and the chip has {limit}"
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=f"Not the card's memory, but the chip's own fast (shared) memory (XLA, JAX){figures}.",
        remedies=(
            estimate("smaller blocks or fewer stages of the kernel (Pallas, Triton)", "shared memory grows with both"),
        ),
        notes=("freeing memory does not help; a kernel tuned for another chip may ask for that chip's size",),
    )


def jax_tpu(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge a program that is larger than a TPU's memory, said by the compiler or by the runtime."""
    said, total = message.said, message.total_bytes
    if "used_bytes" in said and total is not None:
        needed = bytes_of(said["used_bytes"])
        return TextVerdict(
            cause=Cause.TRULY_FULL,
            sentence=(
                f"The compiled program (XLA, JAX) needs {text_of_bytes(needed)} and the TPU core has "
                f"{text_of_bytes(total)}: {text_of_bytes(max(0, needed - total))} too much, whatever else runs."
            ),
            remedies=(
                hold_less(total, max(0, needed - total)),
                estimate("shard over more cores", "each then has a part of weights and activations"),
            ),
            notes=("dimensions are padded to multiples of 8 and 128: shapes that fit them need less",),
        )
    asked, free = message.requested_bytes, message.free_bytes
    figures = f": {text_of_bytes(asked)} asked for, {text_of_bytes(free)} free" if asked and free is not None else ""
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=f"The TPU's memory was full when a program was loaded (XLA, JAX){figures}.",
        remedies=(estimate("a smaller batch", "activations grow with it"),),
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
            estimate(
                "gpu_mem_limit and arena_extend_strategy=kSameAsRequested of CUDAExecutionProvider",
                "otherwise the arena doubles each time it grows, and keeps that; the limit leaves room for others",
            ),
            estimate("enable_cpu_mem_arena=False", "on the CPU: freed buffers go back to the system"),
            estimate("a smaller batch or image", "the node's output grows with it"),
        ),
        notes=("each session has an arena of its own; " + _NVIDIA_SMI,),
    )


def paddle(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge Paddle's error, which has figures."""
    asked, free, held = message.requested_bytes, message.free_bytes, message.allocated_bytes
    if asked is None or free is None:
        return TextVerdict(
            cause=Cause.CANNOT_TELL, sentence="Paddle got no memory of the card; the figures are cut off."
        )
    sums = f"{text_of_bytes(asked)} were asked for with {text_of_bytes(free)} free"
    had = f", and Paddle held {text_of_bytes(held)}" if held is not None else ""
    if free >= asked:
        return TextVerdict(
            cause=Cause.LIMIT,
            sentence=f"Not the card's size: {sums}{had} (Paddle); the driver gives it in larger pieces.",
            notes=(_NVIDIA_SMI,),
        )
    growth = estimate(
        "FLAGS_allocator_strategy=auto_growth",
        "otherwise Paddle takes FLAGS_fraction_of_gpu_memory_to_use (0.92) at the start",
    )
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=f"Memory was truly full: {sums} (Paddle){had}.",
        remedies=(hold_less(held, asked - free), growth) if held else (growth,),
        notes=(_NVIDIA_SMI,) if held is not None else ("the text does not say who held the card; " + _NVIDIA_SMI,),
    )


def bitsandbytes(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge an error of CUDA within bitsandbytes, which names only a line of its source."""
    if ".cu" in message.text:
        return TextVerdict(
            cause=Cause.DISGUISED,
            sentence="bitsandbytes got no memory of the card for a kernel of its own; the text has no figures.",
            remedies=(estimate("a smaller batch", "its scratch memory grows with what it works on"),),
            notes=(_NVIDIA_SMI,),
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


def triton_driver(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge an error of the driver when a Triton kernel is loaded or launched."""
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence="CUDA itself had no memory for loading or launching a Triton kernel; the text has no figures.",
        remedies=(
            estimate(
                "torch.cuda.set_per_process_memory_fraction(0.9)", "a tenth of the card stays for what is not PyTorch's"
            ),
        ),
        notes=("this may be the error of an earlier kernel: a run with CUDA_LAUNCH_BLOCKING=1 shows which",),
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
        remedies=(
            estimate(
                "cupy.get_default_memory_pool().free_all_blocks()", "gives back what the pool keeps and nobody uses"
            ),
        ),
        notes=(_NVIDIA_SMI,),
    )


def mlx(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge MLX's error on Apple's chips, whose memory is the machine's."""
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence="Metal had no memory left for MLX's work; the text does not say how much it asked for.",
        remedies=(
            estimate("a smaller batch or a shorter prompt, or weights in fewer bits", "all of it is in one memory"),
            estimate(
                "mx.set_wired_limit and mx.set_cache_limit", "what MLX caches is given back above the second limit"
            ),
        ),
        notes=("sudo sysctl iogpu.wired_limit_mb=N lets Metal have more of the machine's memory",),
    )


def rmm(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge RAPIDS' allocator: its error is a MemoryError, but of the card."""
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            "The card's memory ran out for RAPIDS (RMM), not the machine's, although the error is called MemoryError; "
            "the text has no figures."
        ),
        remedies=(
            estimate(
                "rmm.reinitialize(managed_memory=True)", "what does not fit is kept in the machine's memory, slower"
            ),
            estimate(
                "rmm.reinitialize(pool_allocator=True)", "fewer requests to the driver, and less lost between them"
            ),
        ),
        notes=(_NVIDIA_SMI,),
    )


def xgboost(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge XGBoost's error, which says what was free; older ones do not."""
    asked, free = message.requested_bytes, message.free_bytes
    smaller = (
        estimate("max_bin=64", "the data are kept as bins on the card; fewer bins take fewer bits"),
        estimate("ExtMemQuantileDMatrix, or fewer rows on each card", "the data then come in pieces"),
    )
    if asked is None or free is None:
        return TextVerdict(
            cause=Cause.CANNOT_TELL,
            sentence="XGBoost got no memory of the card; the text does not say what was asked for and what was free.",
            remedies=smaller,
            notes=(_NVIDIA_SMI,),
        )
    if free >= asked:
        return TextVerdict(
            cause=Cause.CANNOT_TELL,
            sentence=(
                f"XGBoost asked for {text_of_bytes(asked)} of the card and {text_of_bytes(free)} were free: not the "
                "card's size, then; the text does not say what else."
            ),
            notes=("this may be the error of an earlier call: compute-sanitizer shows which",),
        )
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"Memory was truly full: XGBoost asked for {text_of_bytes(asked)} of the card with {text_of_bytes(free)} "
            "free."
        ),
        remedies=smaller,
        notes=(_NVIDIA_SMI,),
    )
