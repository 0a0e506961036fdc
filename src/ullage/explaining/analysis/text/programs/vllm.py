"""Explains memory errors of vLLM. Its memory budget is gpu_memory_utilization times the GPU's memory."""

from dataclasses import replace
from typing import Final

from ullage.base.units import GIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.remedy import Remedy
from ullage.explaining.analysis.text.account import is_unified
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.figure import bytes_of
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory

# The largest plausible size in bytes of the CUDA context of a vLLM process.
_CONTEXT_BYTES: Final = GIB
# The lowest value of gpu_memory_utilization that is recommended. No useful model fits in less memory.
_LEAST_SHARE: Final = 0.1
_BLOCK_TOKENS: Final = 16  # the number of tokens in a block of vLLM's KV cache
_SEE_LOG: Final = "give the whole log: earlier lines of vLLM's log have the parts of the budget"

SWAP: Final = TextVerdict(
    cause=Cause.LIMIT,
    sentence=(
        "vLLM's own swap space in host memory (swap_space, 4 GiB per GPU by default) is full; it is not the swap of "
        "the operating system."
    ),
    remedies=(
        estimate("a higher swap_space (in GiB)", "it holds the KV cache of requests that were set aside"),
        estimate(
            "a higher gpu_memory_utilization, a lower max_num_seqs or fewer samples per request",
            "a larger KV cache on the GPU, or fewer requests at once, needs less swap space",
        ),
    ),
)
CUMEM: Final = TextVerdict(
    cause=Cause.DISGUISED,
    sentence=(
        "vLLM's allocator for sleep mode could not get memory from the driver, usually in wake_up: the trainer in this "
        "process, or another process, has taken the memory that vLLM had released."
    ),
    remedies=(
        estimate(
            "torch.cuda.empty_cache() in the trainer before wake_up()",
            "vLLM cannot use the memory that PyTorch has cached",
        ),
        estimate(
            "wake_up(tags=['weights']) first, wake_up(tags=['kv_cache']) when the trainer has been offloaded",
            "the KV cache is the larger part, and it is empty",
        ),
        estimate("a lower gpu_memory_utilization", "the trainer and vLLM's budget must fit on the GPU together"),
    ),
)
"""The explanation of a driver error in vLLM's allocator for sleep and wake_up."""


def no_blocks(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain vLLM's error "No available memory for the cache blocks"."""
    used = server.taken_bytes if server is not None else None
    if server is None or used is None or server.total_bytes is None:
        lacking = -min(0, server.kv_cache_bytes or 0) if server is not None else 0
        more = f", and {text_of_bytes(lacking)} more" if lacking else ""
        return TextVerdict(
            cause=Cause.LIMIT,
            sentence=(
                "vLLM's own budget is used up before the KV cache: the budget is gpu_memory_utilization x the GPU's "
                f"memory, and weights, activations and other memory on the GPU have taken all of it{more}."
            ),
            remedies=(
                estimate("a higher gpu_memory_utilization", "the budget is that share of the GPU; the default is 0.9"),
                estimate(
                    "a lower max_model_len, max_num_seqs or max_num_batched_tokens",
                    "vLLM measures the activations of the largest batch",
                ),
                estimate(
                    "more GPUs (tensor_parallel_size), or quantized weights", "each GPU holds a part of the weights"
                ),
            ),
            notes=("other programs on the GPU count against the budget: list them with nvidia-smi", _SEE_LOG),
        )
    total = server.total_bytes
    if used >= total:
        return TextVerdict(
            cause=Cause.TRULY_FULL,
            sentence=(
                "The GPU was full before vLLM allocated its KV cache: according to the log, weights, activations and "
                f"libraries need {text_of_bytes(used)} on a GPU with {text_of_bytes(total)}."
            ),
            remedies=(
                estimate(
                    "more GPUs (tensor_parallel_size), or quantized weights", "each GPU holds a part of the weights"
                ),
            ),
        )
    least = _round_up(used / total)
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"vLLM's own budget is used up before the KV cache: its log adds up to {text_of_bytes(used)} of weights, "
            f"activations and libraries, and the GPU has {text_of_bytes(total)}."
        ),
        remedies=(
            estimate(
                f"gpu_memory_utilization above {least:.2f}", f"{text_of_bytes(used)} / {text_of_bytes(total)} are taken"
            ),
            estimate("a lower max_num_batched_tokens", "reduces the peak of activations"),
        ),
    )


def free_at_start(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain vLLM's error "Free memory on device ... on startup is less than desired GPU memory utilization"."""
    free, total = message.free_bytes, message.total_bytes
    if free is None or total is None or "wanted_bytes" not in message.said:
        return TextVerdict(
            cause=Cause.CANNOT_TELL,
            sentence=(
                "vLLM's budget was more than the free memory of the GPU when it started; the message is cut before "
                "the figures."
            ),
        )
    wanted = bytes_of(message.said["wanted_bytes"])
    used = total - free
    fitting = int(100 * free / total) / 100
    sums = f"{text_of_bytes(free)} free / {text_of_bytes(total)}, rounded down"
    lower = (estimate(f"gpu_memory_utilization={fitting:.2f}", sums),) if fitting > 0 else ()
    share = message.said.get("utilization", "a share")
    if is_unified(total):
        return TextVerdict(
            cause=Cause.UNIFIED_MEMORY,
            sentence=(
                f"CPU and GPU use the same memory: {text_of_bytes(total)} is the size of the memory that CPU and GPU "
                f"share in a GB10 (DGX Spark) or Jetson Thor. The system, its page cache and programs used "
                f"{text_of_bytes(used)} of it, and vLLM's budget is {share} x {text_of_bytes(total)} = "
                f"{text_of_bytes(wanted)}."
            ),
            remedies=(
                *lower,
                estimate(
                    "drop the page cache before the start: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches",
                    "files that were read, such as checkpoints, stay in the page cache; free -h shows it, nvidia-smi "
                    "has no figures for unified memory",
                ),
                estimate("end other programs that use host memory", "they use the same memory; also files in /dev/shm"),
            ),
        )
    if max(0, used - _CONTEXT_BYTES) < wanted - free:
        return TextVerdict(
            cause=Cause.LIMIT,
            sentence=(
                f"vLLM was set to use {share} of the GPU, {text_of_bytes(wanted)}, and {text_of_bytes(free)} of "
                f"{text_of_bytes(total)} were free when it started: its context and the desktop use the rest."
            ),
            remedies=lower,
        )
    return TextVerdict(
        cause=Cause.OTHER_PROCESS,
        sentence=(
            f"Other programs used {text_of_bytes(used)} of the GPU when vLLM started: vLLM's budget is {share} "
            f"(gpu_memory_utilization) x {text_of_bytes(total)} = {text_of_bytes(wanted)}, and {text_of_bytes(free)} "
            "were free."
        ),
        remedies=(
            estimate(
                "end the other programs, or use another GPU (CUDA_VISIBLE_DEVICES)",
                "an engine that has not ended keeps its memory: look for VLLM::EngineCore in nvidia-smi",
            ),
            *lower,
        ),
    )


def length(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain vLLM's error "To serve at least one request with the model's max seq len ..., ... GiB KV cache is
    needed".
    """
    said = message.said
    if not {"length", "needed_bytes", "available_bytes"} <= set(said):
        return TextVerdict(
            cause=Cause.LIMIT,
            sentence="vLLM's KV cache is too small for one request of max_model_len tokens; the figures are cut off.",
            remedies=(estimate("a lower max_model_len", "a request's KV cache grows with its tokens"),),
        )
    needed, available = bytes_of(said["needed_bytes"]), bytes_of(said["available_bytes"])
    tokens = int(said["length"])
    if "fitting_length" in said:
        fitting, why = int(said["fitting_length"]), f"vLLM's own estimate for {text_of_bytes(available)}"
    else:
        fitting = int(tokens * available / max(1, needed)) // _BLOCK_TOKENS * _BLOCK_TOKENS
        why = f"{text_of_bytes(available)} / {text_of_bytes(needed)} x {tokens}, if all layers keep every token"
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"vLLM's KV cache is too small for one request of {tokens:,} tokens (max_model_len): it needs "
            f"{text_of_bytes(needed)}, and {_leaves(server)} {text_of_bytes(max(0, available))}."
        ),
        remedies=(
            *((estimate(f"max_model_len={fitting}", why),) if 0 < fitting < tokens else ()),
            _more_budget(needed, max(0, needed - available), server),
            estimate(
                "kv_cache_dtype=fp8",
                f"half of {text_of_bytes(needed)} is {text_of_bytes(needed // 2)}: "
                + ("enough" if needed // 2 <= available else "not enough alone"),
            ),
        ),
    )


def tokens(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain vLLM's error "max seq len ... is larger than the maximum number of tokens that can be stored in KV
    cache".
    """
    said = message.said
    if not {"length", "fitting_length"} <= set(said):
        return length(message, server)
    wanted, fitting = int(said["length"]), int(said["fitting_length"])
    remedies = [estimate(f"max_model_len={fitting}", "the number of tokens that the KV cache holds")]
    if server is not None and server.kv_cache_bytes is not None and server.kv_cache_bytes > 0 and fitting:
        needed = int(server.kv_cache_bytes * wanted / fitting)
        remedies.append(_more_budget(needed, needed - server.kv_cache_bytes, server))
    elif fitting:
        remedies.append(
            estimate(
                "a higher gpu_memory_utilization",
                f"the KV cache must be {wanted / fitting:.2f} times its present size",
            )
        )
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"vLLM's KV cache is too small for one request of {wanted:,} tokens (max_model_len): the budget leaves "
            f"memory for {fitting:,} tokens."
        ),
        remedies=tuple(remedies),
    )


def sampler(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain vLLM's error "CUDA out of memory occurred when warming up sampler"."""
    requests = message.said.get("requests")
    lower = f"max_num_seqs below {requests}" if requests else "a lower max_num_seqs"
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            "vLLM had filled the GPU to its budget (gpu_memory_utilization), and the rest was too little for "
            f"sampling {requests or 'that many'} requests at once."
        ),
        remedies=(
            estimate(lower, "the sampler's memory is requests x vocabulary"),
            estimate("a lower gpu_memory_utilization", "the sampler uses GPU memory outside the budget"),
        ),
    )


def profiling(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain vLLM's error "Error in memory profiling": free memory grew while vLLM measured its own use."""
    said = message.said
    before, after = (max(0, bytes_of(said.get(name, "0"))) for name in ("before_bytes", "after_bytes"))
    if after <= before:
        return TextVerdict(
            cause=Cause.CANNOT_TELL,
            sentence=(
                "Memory did not run out: vLLM found the same free memory after its measurement "
                f"({text_of_bytes(after)}) as before, and concludes that another program released memory."
            ),
            notes=("later versions of vLLM accept equal figures",),
        )
    return TextVerdict(
        cause=Cause.OTHER_PROCESS,
        sentence=(
            f"Memory did not run out: another program released {text_of_bytes(after - before)} of the GPU while vLLM "
            f"measured its own use ({text_of_bytes(before)} free before, {text_of_bytes(after)} after)."
        ),
        remedies=(
            estimate(
                "start vLLM again when the other program has ended or has finished its start", "one after the other"
            ),
        ),
    )


_SMALLER_LARGEST_BATCH: Final = estimate(
    "a lower max_num_batched_tokens, max_num_seqs or limit_mm_per_prompt (images), quantized weights, or more GPUs "
    "(tensor_parallel_size)",
    "vLLM runs its largest batch before it allocates the KV cache: a lower gpu_memory_utilization frees nothing then",
)


def in_vllm(
    verdict: TextVerdict, message: Message, context: tuple[str, ...], server: ServerMemory | None
) -> TextVerdict:
    """Explain an error of PyTorch or CUDA in vLLM. The advice names vLLM's settings."""
    if verdict.cause is Cause.CANNOT_TELL and server is not None:
        verdict = _by_its_log(verdict, message, server)
    missing = max(0, (message.requested_bytes or 0) - (message.free_bytes or 0))
    lower = estimate("a lower gpu_memory_utilization", "memory that vLLM has not planned comes from outside the budget")
    total = message.total_bytes or (server.total_bytes if server is not None else None)
    share = server.utilization if server is not None else None
    if server is not None and server.kv_cache_set_bytes is not None:
        lower = estimate(
            "a lower kv_cache_memory_bytes",
            f"it is set to {text_of_bytes(server.kv_cache_set_bytes)}, and then gpu_memory_utilization has no effect",
        )
    elif missing and total and share is not None and share - missing / total > _LEAST_SHARE:
        fitting = int(100 * (share - missing / total)) / 100
        lower = estimate(
            f"gpu_memory_utilization={fitting:.2f} or lower",
            f"{share:g} - {text_of_bytes(missing)} / {text_of_bytes(total)}, rounded down; later requests need more",
        )
    is_measuring = "profile run" in context and "CUDA graphs" not in context
    if is_measuring and (server is None or server.kv_cache_bytes is None):
        return replace(
            verdict,
            remedies=(_SMALLER_LARGEST_BATCH,),
            notes=("the error occurred within vLLM, before it allocated the KV cache", *verdict.notes),
        )
    remedies: list[Remedy] = [lower]
    where = ""
    if "CUDA graphs" in context:
        where = " while it captured CUDA graphs"
        remedies.append(estimate("enforce_eager=True, or fewer cudagraph_capture_sizes", "each graph keeps memory"))
    remedies.append(estimate("a lower max_num_seqs or max_num_batched_tokens", "activations grow with the batch"))
    if "CUDA graphs" not in context and (server is None or server.weights_bytes is None):
        where = " while it loaded the weights" if "weights" in context else where
        more = estimate(
            "more GPUs (tensor_parallel_size), or quantized weights",
            "a lower budget does not help while weights are loaded, because they must fit",
        )
        remedies.insert(0 if "weights" in context else len(remedies), more)
    remedies += [remedy for remedy in verdict.remedies if remedy.setting is not None]
    return replace(
        verdict,
        remedies=tuple(remedies),
        notes=(
            f"the error occurred within vLLM{where}; vLLM takes its budget of the GPU when it starts",
            *verdict.notes,
        ),
    )


def _by_its_log(verdict: TextVerdict, message: Message, server: ServerMemory) -> TextVerdict:
    taken, total = server.taken_bytes, server.total_bytes
    if taken is None or total is None or server.kv_cache_bytes is None or server.kv_cache_bytes <= 0:
        return verdict
    planned = taken + server.kv_cache_bytes
    if planned + (message.requested_bytes or 0) < total - _CONTEXT_BYTES:
        return verdict
    return replace(
        verdict,
        cause=Cause.TRULY_FULL,
        sentence=(
            f"vLLM's log adds up to {text_of_bytes(planned)} of the GPU's {text_of_bytes(total)}, and the rest was "
            "too little for the memory that vLLM had not planned."
        ),
    )


def _leaves(server: ServerMemory | None) -> str:
    is_set = server is not None and server.kv_cache_set_bytes is not None
    return "kv_cache_memory_bytes gives it" if is_set else "the budget leaves"


def _more_budget(needed: int, missing: int, server: ServerMemory | None) -> Remedy:
    if server is not None and server.kv_cache_set_bytes is not None:
        return estimate(
            f"kv_cache_memory_bytes={needed} ({text_of_bytes(needed)}) or more",
            f"it is set to {text_of_bytes(server.kv_cache_set_bytes)}, and then gpu_memory_utilization has no effect",
        )
    if server is None or server.total_bytes is None or server.utilization is None:
        return estimate(
            "a higher gpu_memory_utilization, or more GPUs",
            f"{text_of_bytes(missing)} more for the KV cache on each GPU",
        )
    share = _round_up(server.utilization + missing / server.total_bytes)
    sums = f"{server.utilization:g} + {text_of_bytes(missing)} / {text_of_bytes(server.total_bytes)}"
    if share >= 1:
        return estimate("more GPUs (tensor_parallel_size)", f"{sums} = {share:.2f}: more than one GPU")
    return estimate(f"gpu_memory_utilization={share:.2f}", sums)


def _round_up(share: float) -> float:
    return -int(-100 * share // 1) / 100
