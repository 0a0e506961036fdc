"""Explains memory errors of JAX, TensorFlow and llama.cpp, and messages of unknown form."""

from dataclasses import replace
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.remedy import Remedy
from ullage.explaining.analysis.text.verdict import SEE_NVIDIA_SMI, TextVerdict, estimate
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory
from ullage.recorded.message.wording import MessageKind

TENSORFLOW_GROWTH: Final = estimate(
    "tf.config.experimental.set_memory_growth(gpu, True)",
    "by default TensorFlow takes nearly all GPU memory when it starts, and other programs get none",
)
_SETTINGS: Final = {
    "JAX": estimate(
        "XLA_PYTHON_CLIENT_PREALLOCATE=false, or another XLA_PYTHON_CLIENT_MEM_FRACTION",
        "by default XLA's pool takes 75 % of the GPU when it starts, and never grows",
    ),
    "TensorFlow": TENSORFLOW_GROWTH,
    "llama.cpp": estimate("fewer layers on the GPU: -ngl, in ollama num_gpu", "the CPU computes the remaining layers"),
}
_WITH_A_POOL: Final = ("JAX", "TensorFlow")
SMALLER: Final = estimate(
    "a smaller batch, input, context or model", "reduces the memory needed at once, in any program"
)
_SMALLER_TENSOR: Final = estimate(
    "a smaller batch or input, or the input in tiles", "the message names the shape of the tensor that did not fit"
)
_OF_THE_MACHINE: Final = "a limit of the container or the batch system counts as host memory"
_TAKEN: Final = "memory held by PyTorch or another program is not free for this program: list processes with nvidia-smi"

OLLAMA_PERHAPS: Final = TextVerdict(
    cause=Cause.CANNOT_TELL,
    sentence="llama.cpp's process ended, and ollama only guesses that memory ran out.",
    notes=("the server's log has the reason: journalctl -u ollama, or ~/.ollama/logs/server.log",),
)
TENSORFLOW_COPY: Final = TextVerdict(
    cause=Cause.DISGUISED,
    sentence=(
        "GPU memory probably ran out: TensorFlow reports this error if a copy to the GPU has no memory for its "
        "result. The message has no figures."
    ),
    remedies=(TENSORFLOW_GROWTH,),
    notes=(SEE_NVIDIA_SMI,),
)


def another_program(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain an out-of-memory message of JAX, TensorFlow or llama.cpp."""
    program = message.backend or "a program"
    if program == "TensorFlow" and "xla" in message.text:  # JAX uses the same allocator
        program = "JAX"
    asked = text_of_bytes(message.requested_bytes) if message.requested_bytes else "the requested memory"
    where = f" on GPU {message.device}" if message.device is not None else ""
    if message.kind is MessageKind.HOST or message.said.get("place") == "CPU":
        return TextVerdict(
            cause=Cause.HOST_MEMORY,
            sentence=f"Host memory ran out, not GPU memory: {program} could not get {asked}.",
            remedies=(
                estimate(
                    "a smaller or more quantized model, or a shorter context (num_ctx)",
                    "weights and KV cache must fit into host memory",
                ),
                estimate("end other programs, or use the GPU", "both leave more host memory free"),
            ),
            notes=(_OF_THE_MACHINE,),
        )
    remedies = (_SETTINGS[program], SMALLER)
    if message.text.startswith("OOM when allocating tensor"):  # one tensor of a model, not the start of the program
        remedies = (_SMALLER_TENSOR, _SETTINGS[program])
    if message.kind is MessageKind.WARNING:
        return TextVerdict(
            cause=Cause.CANNOT_TELL,
            sentence=(
                f"This warning is not a failure: {program} could not get {asked} of GPU memory, and continues with "
                "less."
            ),
            remedies=remedies,
            notes=("if the run did fail, its error comes later: give the whole log",),
        )
    if (full := _full_by_its_figures(message, remedies)) is not None:
        return full
    if program in _WITH_A_POOL:
        return TextVerdict(
            cause=Cause.CANNOT_TELL,
            likely=Cause.TRULY_FULL,
            sentence=f"{program}'s own pool of GPU memory{where} could not provide {asked}.",
            remedies=remedies,
            notes=("the message contains neither the size of the pool nor that of the GPU", _TAKEN),
        )
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=f"{program} requested GPU memory{where} from the driver and could not get {asked}.",
        remedies=remedies,
        notes=("the message does not contain the free memory", _TAKEN),
    )


_OCCUPIED: Final = TextVerdict(
    cause=Cause.CANNOT_TELL,
    likely=Cause.OTHER_PROCESS,
    sentence="The text says that other processes use the GPU. It has no figures.",
    remedies=(
        estimate(
            "list the GPU's processes with nvidia-smi, and end them, or use another GPU (CUDA_VISIBLE_DEVICES)",
            "an earlier run that did not end, a server or another user holds the GPU",
        ),
    ),
)
"""The verdict on a line that says, without figures, that other processes use the GPU."""


def unknown_words(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain an out-of-memory message that belongs to no known program."""
    asked = f" ({text_of_bytes(message.requested_bytes)} requested)" if message.requested_bytes else ""
    if (full := _full_by_its_figures(message, (SMALLER,))) is not None:
        return full
    words = "; ullage does not know this error message"
    match message.said.get("memory"):
        case "machine":
            return TextVerdict(
                cause=Cause.HOST_MEMORY,
                sentence=f"Host memory ran out, not GPU memory{asked}{words}.",
                notes=(_OF_THE_MACHINE,),
            )
        case "chip":
            return TextVerdict(
                cause=Cause.ON_CHIP,
                sentence=(
                    "The chip's shared memory is too small, not the GPU's memory: a kernel needs more of it per block"
                    f"{words}. Freeing GPU memory does not help."
                ),
                remedies=(estimate("smaller blocks or layers", "both reduce the use of shared memory"),),
            )
        case "driver":
            return TextVerdict(
                cause=Cause.DISGUISED,
                sentence=(
                    f"The driver had no GPU memory left{asked} for a program that requests it directly{words}. The "
                    "message has no figures of the GPU."
                ),
                remedies=(SMALLER,),
                notes=(_TAKEN,),
            )
        case "others":
            return _OCCUPIED
        case "card":
            whose = "GPU memory ran out"
        case _:
            whose = "A program ran out of GPU or host memory (the message does not say which)"
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        likely=Cause.TRULY_FULL if message.said.get("memory") == "card" else None,
        sentence=f"{whose}{asked}{words}.",
        remedies=(
            SMALLER,
            estimate("a shorter context or smaller KV cache, quantized weights, or offloading", "in any program"),
        ),
        notes=(
            SEE_NVIDIA_SMI,
            "the program's manual lists its memory settings; its whole log may contain a message that ullage knows",
        ),
    )


def check(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain the message of a program that compared the memory it needs with the memory it has, and refused to run."""
    if message.said.get("memory") == "tokens":
        return _too_few_tokens(message)
    needed, has = text_of_bytes(message.requested_bytes or 0), text_of_bytes(message.free_bytes or 0)
    is_host = message.said.get("memory") == "machine"
    what = "host memory (or memory that CPU and GPU share)" if is_host else "memory"
    smaller = estimate(
        "a smaller or quantized model, a shorter context, a smaller batch or image, or offloading",
        f"{needed} needed, {has} available",
    )
    setting = message.said.get("limit")
    override = estimate(
        f"raise {setting or 'the limit of the program'} to at least {needed}, or override the check, if the machine "
        "has the memory",
        "such estimates do not know the libraries and settings of the machine; with unified memory, also drop the page "
        "cache and end other programs",
    )
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        likely=Cause.LIMIT,
        sentence=(
            f"The program itself refused to continue: by its own estimate it needs {needed} of {what}, and it may use "
            f"{has}. No request has failed."
        ),
        remedies=(smaller, override) if setting is None else (override, smaller),
    )


def of_stable_diffusion(verdict: TextVerdict) -> TextVerdict:
    """Return a verdict on an error of llama.cpp's library with the settings of stable-diffusion.cpp."""
    tiles = estimate(
        "--vae-tiling, a smaller image, or --vae-on-cpu",
        "the decoder of the VAE needs one large buffer, and drivers limit the size of a buffer",
    )
    weights = estimate("a more quantized model, or --offload-to-cpu", "if the weights were being loaded")
    return replace(
        verdict, sentence=verdict.sentence.replace("llama.cpp", "stable-diffusion.cpp"), remedies=(tiles, weights)
    )


def _too_few_tokens(message: Message) -> TextVerdict:
    figures, why = "", "the KV cache grows with tokens and requests"
    if "needed" in message.said:
        needed, has = int(message.said["needed"]), int(message.said["has"])
        figures = f": it needs {needed:,} tokens or blocks, and its cache or limit has {has:,}"
        why = f"{needed:,} needed, {has:,} available"
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        likely=Cause.LIMIT,
        sentence=(
            f"The program's KV cache is too small, and the program refused to continue{figures}. No request for memory "
            "has failed."
        ),
        remedies=(
            estimate("a shorter context, prompt or output, or fewer requests at once", why),
            estimate(
                "a larger cache: a higher share of GPU memory for it, a quantized KV cache, smaller weights, or more "
                "GPUs",
                "the cache gets the memory that the weights leave",
            ),
        ),
    )


def _full_by_its_figures(message: Message, remedies: tuple[Remedy, ...]) -> TextVerdict | None:
    requested, free, total = message.requested_bytes, message.free_bytes, message.total_bytes
    if requested is None or free is None or requested < free:
        return None
    of = f" of {text_of_bytes(total)}" if total is not None else ""
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"{message.backend or 'The program'} requested {text_of_bytes(requested)}, but by its own figures only "
            f"{text_of_bytes(free)}{of} were free."
        ),
        remedies=remedies,
        notes=(SEE_NVIDIA_SMI,),
    )
