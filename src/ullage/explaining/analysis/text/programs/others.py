"""An error of memory in words that are not known: whose memory it is, and what can be done whatever the program is."""

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory


def unknown_words(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge what `ullage.recorded.message.unknown_words` has found."""
    asked = f" ({text_of_bytes(message.requested_bytes)} asked for)" if message.requested_bytes else ""
    if message.free_bytes is not None and message.requested_bytes is not None:
        return TextVerdict(
            cause=Cause.TRULY_FULL,
            sentence=(
                f"Memory was truly full, by the program's own figures: {text_of_bytes(message.requested_bytes)} "
                f"needed, {text_of_bytes(message.free_bytes)} free."
            ),
            remedies=(estimate("a smaller batch, input or model", "less is needed at once"),),
            notes=("other programs may hold the card: see with nvidia-smi",),
        )
    words = "; the words are not among those that ullage knows"
    match message.said.get("memory"):
        case "machine":
            return TextVerdict(
                cause=Cause.DISGUISED,
                sentence=f"The machine's own memory ran out, not the card's{asked}{words}.",
                notes=("a limit of the container or the batch system counts as the machine's memory",),
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
                remedies=(estimate("a smaller batch, input or model", "less is needed at once"),),
                notes=(
                    "what other programs, or another library in the same process, have taken is not free for it: see "
                    "with nvidia-smi",
                ),
            )
        case "card":
            whose = "The card's memory ran out"
        case _:
            whose = "A program's memory ran out, and the text does not say whether it was the card's"
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=f"{whose}{asked}{words}, so that why is open.",
        remedies=(estimate("a smaller batch, input or model", "less is needed at once, whatever the program is"),),
        notes=(
            "other programs may hold the card: see with nvidia-smi",
            "the program's own settings of memory are in its manual; its whole log may have words that are known",
        ),
    )
