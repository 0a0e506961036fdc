"""Explains memory errors of SGLang. Its setting `mem_fraction_static` is the share of free memory for weights and KV
cache.
"""

from dataclasses import replace
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.figure import number_of
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory

REQUESTS: Final = TextVerdict(
    cause=Cause.LIMIT,
    sentence="SGLang's table of running requests is full, not the GPU's memory.",
    remedies=(
        estimate("a lower max_running_requests", "as the message recommends; requests then wait for a free slot"),
    ),
)
"""The explanation of "alloc_req_slots runs out of memory": the table of running requests is full."""
STATES: Final = TextVerdict(
    cause=Cause.LIMIT,
    sentence=(
        "SGLang's pool of states (of Mamba and linear-attention layers) is full. It has a fixed size; the GPU's "
        "memory use did not grow."
    ),
    remedies=(
        estimate("a higher max_mamba_cache_size or mamba_full_memory_ratio", "more states, taken from the KV cache"),
        estimate("a lower max_running_requests", "each request has its own state"),
    ),
)
"""The explanation of "Not enough space for mamba cache": the state pool of linear-attention layers is full."""


def fraction(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain SGLang's error "Not enough memory. Please try to increase --mem-fraction-static"."""
    now = f" (now {message.said['fraction']})" if "fraction" in message.said else ""
    sentence = (
        "The weights alone use up SGLang's share for weights and KV cache (mem_fraction_static), so no memory is "
        "left for the KV cache."
    )
    higher = estimate(
        f"a higher mem_fraction_static{now}",
        "(1 - mem_fraction_static) of the GPU is reserved for activations and graphs",
    )
    if server is not None and server.available_bytes is not None and server.weights_bytes:
        before = server.available_bytes + server.weights_bytes
        least = -int(-100 * server.weights_bytes / before // 1) / 100
        sentence = (
            f"The weights use up SGLang's share for weights and KV cache (mem_fraction_static): they take "
            f"{text_of_bytes(server.weights_bytes)} of the {text_of_bytes(before)} that were free before."
        )
        higher = estimate(
            f"mem_fraction_static above {least:.2f}{now}",
            f"{text_of_bytes(server.weights_bytes)} / {text_of_bytes(before)}; the rest of the share is the KV cache",
        )
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=sentence,
        remedies=(
            higher,
            estimate("more GPUs (tp_size), or quantized weights", "each GPU holds a part of the weights"),
        ),
        notes=(
            "if memory then runs out while SGLang captures graphs or serves, the share is too high: lower "
            "cuda_graph_max_bs or chunked_prefill_size",
        ),
    )


def weights(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain SGLang's error "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=...".

    The least share in the message is 1 - free after loading / free before. It includes memory that another program took
    meanwhile, but not the memory that SGLang reserves in addition to the weights.
    """
    said = message.said
    share, least = (number_of(said[name]) if name in said else None for name in ("fraction", "least"))
    others = "memory that other programs took during loading counts as weights: list them with nvidia-smi"
    if share is not None and least is not None and least <= share:
        return TextVerdict(
            cause=Cause.LIMIT,
            sentence=(
                f"SGLang's share for weights and KV cache (mem_fraction_static={share:g}) leaves nothing for the KV "
                f"cache. The weights need only {least:.4g} of the free memory, but SGLang reserves more."
            ),
            remedies=(
                estimate(
                    "a lower chunked_prefill_size or max_mamba_cache_size, or a smaller draft model",
                    "activations and the states of linear-attention layers are reserved before the KV cache",
                ),
                estimate("more GPUs (tp_size), or quantized weights", "each GPU holds a part of the weights"),
            ),
            notes=(f"a share above {least:.4g}, as the message recommends, has already failed", others),
        )
    now = f" (now {share:g})" if share is not None else ""
    higher = estimate(
        f"a higher mem_fraction_static{now}", "(1 - mem_fraction_static) of the free memory is reserved for other uses"
    )
    taken = "the weights take more than that share of the free memory"
    if least is not None:
        higher = estimate(
            f"mem_fraction_static above {-int(-1000 * least // 1) / 1000:g}{now}",
            f"the message's own formula: 1 - free after loading / free before = {least:.4g}; the rest of the share is "
            "the KV cache",
        )
        taken = f"the weights take {least:.4g} of the free memory"
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"The weights alone use up SGLang's share for weights and KV cache (mem_fraction_static"
            f"{f'={share:g}' if share is not None else ''}): {taken}."
        ),
        remedies=(
            higher,
            estimate("more GPUs (tp_size), or quantized weights", "each GPU holds a part of the weights"),
        ),
        notes=("with speculative decoding, the draft model's weights count too", others),
    )


def tokens(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain SGLang's error "Decode out of memory": the token pool, which has a fixed size, is full."""
    wanted, free, window = (
        int(message.said[name]) if name in message.said else None for name in ("wanted", "available", "window")
    )
    fewer = estimate("a lower max_running_requests, or shorter requests", "fewer tokens at once")
    larger = estimate("a higher mem_fraction_static", "a larger pool, from memory that is reserved for activations")
    if wanted is not None and window is not None and free is not None and window < wanted <= free:
        return TextVerdict(
            cause=Cause.LIMIT,
            sentence=(
                f"SGLang's token pool for layers with a sliding window is full: {wanted:,} tokens were requested, "
                f"{window:,} were free in it, and {free:,} for the other layers. The GPU's memory use did not grow."
            ),
            remedies=(
                estimate("a higher swa_full_tokens_ratio", "enlarges that pool's part of the KV cache"),
                fewer,
                larger,
            ),
        )
    if wanted is not None and free is not None and wanted <= free:
        return TextVerdict(
            cause=Cause.LIMIT,
            sentence=(
                f"SGLang's token pool (the KV cache, of fixed size) could not provide {wanted:,} tokens, although "
                f"{free:,} were free: it allocates whole pages, and each growing request needs its own page."
            ),
            remedies=(estimate("a lower page_size", "fewer unused tokens on a request's last page"), fewer, larger),
        )
    asked = f": {wanted:,} tokens were requested, {free:,} were free" if wanted is not None and free is not None else ""
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"SGLang's token pool (the KV cache, of fixed size) is full{asked}. The GPU's memory use did not grow."
        ),
        remedies=(fewer, larger),
    )


def in_sglang(
    verdict: TextVerdict, message: Message, context: tuple[str, ...], server: ServerMemory | None
) -> TextVerdict:
    """Explain an error of PyTorch or CUDA in SGLang. The advice names SGLang's settings."""
    missing = max(0, (message.requested_bytes or 0) - (message.free_bytes or 0))
    lower = estimate("a lower mem_fraction_static", "activations and graphs use the rest of the GPU's memory")
    if missing and message.total_bytes:
        less = -(-100 * missing // message.total_bytes) / 100
        lower = estimate(
            f"mem_fraction_static lower by {max(0.01, less):.2f} or more",
            f"{text_of_bytes(missing)} are missing of {text_of_bytes(message.total_bytes)}",
        )
    graphs = "CUDA graphs" in context
    fewer = (
        estimate("a lower cuda_graph_max_bs, or disable_cuda_graph", "each captured batch size keeps memory")
        if graphs
        else estimate("a lower chunked_prefill_size or max_running_requests", "activations grow with the batch")
    )
    where = " while it captured CUDA graphs" if graphs else ""
    return replace(
        verdict,
        remedies=(lower, fewer, *(remedy for remedy in verdict.remedies if remedy.setting is not None)),
        notes=(
            f"the error occurred within SGLang{where}; SGLang takes its share of the GPU when it starts",
            *verdict.notes,
        ),
    )
