"""Whose memory it was, of programs that share the card with PyTorch and of words that are not known.

JAX, TensorFlow and llama.cpp have memory of their own on the card, which none of PyTorch's settings changes.
"""

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
    "otherwise TensorFlow takes nearly all of the card at the start, and others find nothing",
)
_SETTINGS: Final = {
    "JAX": estimate(
        "XLA_PYTHON_CLIENT_PREALLOCATE=false, or another XLA_PYTHON_CLIENT_MEM_FRACTION",
        "XLA's pool takes 75 % of the card at the start by default, and no more than that later",
    ),
    "TensorFlow": TENSORFLOW_GROWTH,
    "llama.cpp": estimate("fewer layers on the card: -ngl, in ollama num_gpu", "the others are computed on the CPU"),
}
_WITH_A_POOL: Final = ("JAX", "TensorFlow")
SMALLER: Final = estimate("a smaller batch, input or model", "less is needed at once, whatever the program is")
_OF_THE_MACHINE: Final = "a limit of the container or the batch system counts as the machine's memory"
_TAKEN: Final = "what PyTorch or another program has taken of the card is not free for it: see with nvidia-smi"

OLLAMA_PERHAPS: Final = TextVerdict(
    cause=Cause.CANNOT_TELL,
    sentence="llama.cpp's process ended, and ollama only guesses that memory was missing.",
    notes=("the server's log has the reason: journalctl -u ollama, or ~/.ollama/logs/server.log",),
)
TENSORFLOW_COPY: Final = TextVerdict(
    cause=Cause.DISGUISED,
    sentence=(
        "The card's memory most often: TensorFlow says this when a copy to the card found no room for its result; the "
        "text has no figures."
    ),
    remedies=(TENSORFLOW_GROWTH,),
    notes=(SEE_NVIDIA_SMI,),
)


def another_program(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge a message of JAX, TensorFlow or llama.cpp."""
    program = message.backend or "a program"
    asked = text_of_bytes(message.requested_bytes) if message.requested_bytes else "what it asked for"
    where = f" on card {message.device}" if message.device is not None else ""
    if message.kind is MessageKind.HOST or message.said.get("place") == "CPU":
        return TextVerdict(
            cause=Cause.DISGUISED,
            sentence=f"The machine's own memory was too little, not the card's: {program} did not get {asked}.",
            notes=(_OF_THE_MACHINE,),
        )
    remedies = (_SETTINGS[program], SMALLER)
    if message.kind is MessageKind.WARNING:
        return TextVerdict(
            cause=Cause.CANNOT_TELL,
            sentence=f"No failure by itself: {program} did not get {asked} of the card, and goes on with less.",
            remedies=remedies,
            notes=("where the run did fail, its error comes later: give the whole log",),
        )
    if (full := _full_by_its_figures(message, remedies)) is not None:
        return full
    if program in _WITH_A_POOL:
        return TextVerdict(
            cause=Cause.CANNOT_TELL,
            sentence=f"{program}'s own pool of the card's memory{where} could not give {asked}; why is open.",
            remedies=remedies,
            notes=("the text does not say what the pool or the card had", _TAKEN),
        )
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=f"{program} asked the driver for memory of the card{where} and did not get {asked}.",
        remedies=remedies,
        notes=("the text does not say what was free", _TAKEN),
    )


def unknown_words(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge what `ullage.recorded.message.unknown_words` has found."""
    asked = f" ({text_of_bytes(message.requested_bytes)} asked for)" if message.requested_bytes else ""
    if (full := _full_by_its_figures(message, (SMALLER,))) is not None:
        return full
    words = "; the words are not among those that ullage knows"
    match message.said.get("memory"):
        case "machine":
            return TextVerdict(
                cause=Cause.DISGUISED,
                sentence=f"The machine's own memory ran out, not the card's{asked}{words}.",
                notes=(_OF_THE_MACHINE,),
            )
        case "chip":
            return TextVerdict(
                cause=Cause.LIMIT,
                sentence=(
                    "Not the card's memory: a kernel needs more of the chip's own fast (shared) memory a block"
                    f"{words}; freeing memory does not help."
                ),
                remedies=(estimate("smaller blocks or layers", "shared memory grows with both"),),
            )
        case "driver":
            return TextVerdict(
                cause=Cause.DISGUISED,
                sentence=(
                    f"The driver had no memory of the card left{asked} for a program that asks it directly{words}, and "
                    "there are no figures of the card."
                ),
                remedies=(SMALLER,),
                notes=(_TAKEN,),
            )
        case "card":
            whose = "The card's memory ran out"
        case _:
            whose = "A program's memory ran out, and the text does not say whether it was the card's"
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=f"{whose}{asked}{words}, so that why is open.",
        remedies=(SMALLER,),
        notes=(
            SEE_NVIDIA_SMI,
            "the program's own settings of memory are in its manual; its whole log may have words that are known",
        ),
    )


def _full_by_its_figures(message: Message, remedies: tuple[Remedy, ...]) -> TextVerdict | None:
    """Return the verdict where a text has both figures, and less was free than needed; None otherwise."""
    requested, free, total = message.requested_bytes, message.free_bytes, message.total_bytes
    if requested is None or free is None or requested < free:
        return None
    of = f" of {text_of_bytes(total)}" if total is not None else ""
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"Memory was truly full, by {message.backend or 'the program'}'s own figures: {text_of_bytes(requested)} "
            f"needed, {text_of_bytes(free)}{of} free."
        ),
        remedies=remedies,
        notes=(SEE_NVIDIA_SMI,),
    )
