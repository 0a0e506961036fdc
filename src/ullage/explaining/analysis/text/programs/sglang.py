"""SGLang: mem_fraction_static, the share of the free memory that weights and the KV cache may take together."""

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
    sentence="Not the card's memory: SGLang's table of running requests is full.",
    remedies=(estimate("a lower max_running_requests", "as the text asks; requests then wait for a place"),),
)
"""The verdict on "alloc_req_slots runs out of memory": the pool of requests, which is a table of fixed length."""
STATES: Final = TextVerdict(
    cause=Cause.LIMIT,
    sentence=(
        "SGLang's pool of states (of Mamba and linear-attention layers, made at the start) is full; the card is as "
        "full as it was."
    ),
    remedies=(
        estimate("a higher max_mamba_cache_size or mamba_full_memory_ratio", "more states, from the KV cache"),
        estimate("a lower max_running_requests", "each request has a state of its own"),
    ),
)
"""The verdict on "Not enough space for mamba cache": the pool of the states of linear-attention layers."""


def fraction(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge "Not enough memory. Please try to increase --mem-fraction-static"."""
    now = f" (it is {message.said['fraction']})" if "fraction" in message.said else ""
    sentence = (
        "SGLang's share for weights and KV cache (mem_fraction_static) is used up by the weights alone, so that no KV "
        "cache fits in."
    )
    higher = estimate(
        f"a higher mem_fraction_static{now}", "(1 - mem_fraction_static) of the card is kept for activations and graphs"
    )
    if server is not None and server.available_bytes is not None and server.weights_bytes:
        before = server.available_bytes + server.weights_bytes
        least = -int(-100 * server.weights_bytes / before // 1) / 100
        sentence = (
            f"SGLang's share for weights and KV cache (mem_fraction_static) is used up by the weights: they take "
            f"{text_of_bytes(server.weights_bytes)} of the {text_of_bytes(before)} that were free before."
        )
        higher = estimate(
            f"mem_fraction_static above {least:.2f}{now}",
            f"{text_of_bytes(server.weights_bytes)} / {text_of_bytes(before)}; what is above it is the KV cache",
        )
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=sentence,
        remedies=(higher, estimate("more cards (tp_size), or quantized weights", "each card has its part of them")),
        notes=(
            "where it then runs out while it captures graphs or serves, the share is too high: lower cuda_graph_max_bs "
            "or chunked_prefill_size",
        ),
    )


def weights(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=...".

    The least share that the text tells is 1 - free after loading / free before: what another program took meanwhile is
    in it, and what SGLang sets aside beside the weights is not.
    """
    said = message.said
    share, least = (number_of(said[name]) if name in said else None for name in ("fraction", "least"))
    others = "what another program took while the weights were loaded counts as theirs: see with nvidia-smi"
    if share is not None and least is not None and least <= share:
        return TextVerdict(
            cause=Cause.LIMIT,
            sentence=(
                f"SGLang's share for weights and KV cache (mem_fraction_static={share:g}) leaves nothing for the KV "
                f"cache, although the weights need {least:.4g} of what was free: SGLang sets more aside."
            ),
            remedies=(
                estimate(
                    "a lower chunked_prefill_size or max_mamba_cache_size, or a smaller draft model",
                    "activations and the states of linear-attention layers are set aside before the KV cache",
                ),
                estimate("more cards (tp_size), or quantized weights", "each card has its part of them"),
            ),
            notes=(f"a share above {least:.4g}, as the text advises, was refused already", others),
        )
    now = f" (it is {share:g})" if share is not None else ""
    higher = estimate(
        f"a higher mem_fraction_static{now}", "(1 - mem_fraction_static) of what was free is kept for other things"
    )
    taken = "the weights take more than that of what was free"
    if least is not None:
        higher = estimate(
            f"mem_fraction_static above {-int(-1000 * least // 1) / 1000:g}{now}",
            f"the text's own sum: 1 - free after loading / free before = {least:.4g}; what is above is the KV cache",
        )
        taken = f"the weights take {least:.4g} of what was free"
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"SGLang's share for weights and KV cache (mem_fraction_static{f'={share:g}' if share is not None else ''})"
            f" is used up by the weights alone: {taken}."
        ),
        remedies=(higher, estimate("more cards (tp_size), or quantized weights", "each card has its part of them")),
        notes=("with speculative decoding the draft model's weights count too", others),
    )


def tokens(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge "Decode out of memory": the pool of tokens is full, which was made at the start."""
    wanted, free, window = (
        int(message.said[name]) if name in message.said else None for name in ("wanted", "available", "window")
    )
    fewer = estimate("a lower max_running_requests, or shorter requests", "fewer tokens at once")
    larger = estimate("a higher mem_fraction_static", "a larger pool, from what is kept for activations")
    if wanted is not None and window is not None and free is not None and window < wanted <= free:
        return TextVerdict(
            cause=Cause.LIMIT,
            sentence=(
                f"SGLang's pool of tokens for layers with a sliding window is full: {wanted:,} were asked for, "
                f"{window:,} were free there, and {free:,} for the other layers; the card is as full as it was."
            ),
            remedies=(estimate("a higher swa_full_tokens_ratio", "that pool's part of the KV cache"), fewer, larger),
        )
    if wanted is not None and free is not None and wanted <= free:
        return TextVerdict(
            cause=Cause.LIMIT,
            sentence=(
                f"SGLang's pool of tokens (the KV cache, made at the start) could not give {wanted:,}, although "
                f"{free:,} were free: it gives whole pages, and a request that grows needs one of its own."
            ),
            remedies=(estimate("a lower page_size", "fewer tokens are bound to a request's last page"), fewer, larger),
        )
    asked = f": {wanted:,} tokens were asked for, {free:,} were free" if wanted is not None and free is not None else ""
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"SGLang's pool of tokens (the KV cache, made at the start) is full{asked}; the card is as full as it was."
        ),
        remedies=(fewer, larger),
    )


def in_sglang(
    verdict: TextVerdict, message: Message, context: tuple[str, ...], server: ServerMemory | None
) -> TextVerdict:
    """Return the verdict on an error of PyTorch or CUDA that came within SGLang, with SGLang's settings."""
    missing = max(0, (message.requested_bytes or 0) - (message.free_bytes or 0))
    lower = estimate("a lower mem_fraction_static", "activations and graphs are paid from what it leaves of the card")
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
        notes=(f"it happened within SGLang{where}; SGLang takes its share of the card at the start", *verdict.notes),
    )
