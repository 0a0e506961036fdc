"""llama.cpp, ollama and what else is built on ggml: each buffer is one request to the driver."""

from typing import Final

from ullage.base.units import GIB, text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory

_MORE_THAN_ANY_CARD: Final = 256 * GIB
_FEWER_LAYERS: Final = estimate(
    "fewer layers on the card: -ngl, in ollama num_gpu",
    "the others are computed on the CPU; where it is left out, llama.cpp of 2026 chooses how many fit",
)
_SHORTER: Final = estimate("a shorter context: -c, in ollama num_ctx", "KV cache and compute buffer grow with it")
_SMALLER_BATCH: Final = estimate("a smaller -ub, and flash attention (-fa)", "the compute buffer is of one batch")


def buffer(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge a buffer that the driver refused: weights, KV cache or compute buffer."""
    part = message.said.get("part", "")
    kind, remedies = _PARTS.get(part, ("a buffer", (_FEWER_LAYERS, _SHORTER, _SMALLER_BATCH)))
    asked = text_of_bytes(message.requested_bytes) if message.requested_bytes is not None else "memory"
    where = f" on card {message.device}" if message.device is not None else ""
    if message.requested_bytes is not None and message.requested_bytes > _MORE_THAN_ANY_CARD:
        more = "which no card has"
    else:
        more = "and less than that was free"
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=f"llama.cpp asked the driver for {asked} at once{where}, {kind}, {more}.",
        remedies=remedies,
        notes=("the text does not say what was free, nor who held the rest: see with nvidia-smi",),
    )


_KV_CACHE: Final = (
    "for the KV cache",
    (_SHORTER, estimate("-ctk q8_0 -ctv q8_0", "half of the KV cache's bytes"), _FEWER_LAYERS),
)
_PARTS: Final = {
    "alloc_tensor_range": ("for the weights", (_FEWER_LAYERS, estimate("-ts, another split of the layers", "by card"))),
    "loading model": ("for the weights", (_FEWER_LAYERS, estimate("-ts, another split of the layers", "by card"))),
    "gallocr_reserve": ("for the compute buffer", (_SMALLER_BATCH, _SHORTER, _FEWER_LAYERS)),
    "compute buffers": ("for the compute buffer", (_SMALLER_BATCH, _SHORTER, _FEWER_LAYERS)),
    "kv_cache_init": _KV_CACHE,
    "kv cache": _KV_CACHE,
}


def driver(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge an error of the driver without figures."""
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence="llama.cpp got no memory of the card from the driver; the text does not say how much it asked for.",
        remedies=(_FEWER_LAYERS, _SHORTER, _SMALLER_BATCH),
        notes=(
            "other programs may hold the card (nvidia-smi); under WSL and Windows less than the card has is given out",
        ),
    )


def pinned(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge host memory that could not be pinned: llama.cpp goes on with ordinary memory."""
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=(
            "The machine's own memory could not be pinned for llama.cpp, which goes on with ordinary memory: slower, "
            "and no failure."
        ),
        notes=("a limit of locked memory (ulimit -l), WSL or a container allows little pinned memory",),
    )


def machine_buffer(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge a buffer of the CPU that the system refused."""
    asked = f" of {text_of_bytes(message.requested_bytes)}" if message.requested_bytes is not None else ""
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=f"The machine's own memory ran out, not the card's: llama.cpp got no buffer{asked} of the CPU.",
        remedies=(
            estimate("more layers on the card: -ngl, in ollama num_gpu", "layers that are on no card are kept here"),
            estimate("a shorter context (-c, num_ctx), or a model with fewer bits", "less is kept here"),
        ),
    )


def host(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge ollama's check that the model fits the machine's memory."""
    figures = ""
    if message.requested_bytes is not None and message.free_bytes is not None:
        figures = f": {text_of_bytes(message.requested_bytes)} needed, {text_of_bytes(message.free_bytes)} available"
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=f"The machine's own memory is too small for the model (ollama, llama.cpp){figures}.",
        remedies=(
            estimate(
                "a model with fewer bits, or a shorter context (num_ctx)", "layers that fit no card are kept here"
            ),
        ),
    )


def perhaps(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge ollama's guess."""
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence="llama.cpp's process ended, and ollama only guesses that memory was missing.",
        notes=("the server's log has the reason: journalctl -u ollama, or ~/.ollama/logs/server.log",),
    )
