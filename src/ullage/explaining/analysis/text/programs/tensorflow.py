"""TensorFlow's pool (BFC), which takes nearly all of the card at the start, and the lines of log it leaves."""

from typing import Final

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory

_NVIDIA_SMI: Final = "other programs may hold the card: see with nvidia-smi"
_GROWTH: Final = estimate(
    "tf.config.experimental.set_memory_growth(gpu, True)",
    "otherwise TensorFlow takes nearly all of the card at the start; no help if the model is too large",
)


def tensor(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge a tensor for which TensorFlow's pool had no room."""
    shape = message.said.get("shape", "").replace(",", " x ")
    asked = f"{text_of_bytes(message.requested_bytes)} ({shape})" if message.requested_bytes else f"a tensor ({shape})"
    if message.said.get("place") == "CPU":
        return TextVerdict(
            cause=Cause.DISGUISED,
            sentence=f"The machine's own memory ran out, not the card's: TensorFlow asked for {asked} on the CPU.",
            remedies=(estimate("a smaller batch or shuffle buffer", "both are kept in the machine's memory"),),
        )
    where = f" on card {message.device}" if message.device is not None else ""
    notes = ["the log above has the pool's statistics (Limit, InUse, MaxInUse): Limit - InUse is what was left"]
    if not where:
        notes.append("the text does not even say whether it was the card's memory or the machine's")
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=f"TensorFlow's pool{where} could not give {asked}; the text does not say what the pool had.",
        remedies=(estimate("a smaller batch", "the first of the shape's numbers is most often the batch"), _GROWTH),
        notes=(*notes, _NVIDIA_SMI),
    )


def request(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge the line of the log with which TensorFlow's pool says that it could not give something."""
    asked = text_of_bytes(message.requested_bytes) if message.requested_bytes else "what was asked for"
    where = f" for {message.said['operation']}" if "operation" in message.said else ""
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=f"TensorFlow's pool of the card could not give {asked}{where}; this line does not say what it had.",
        remedies=(estimate("a smaller batch", "activations grow with it"), _GROWTH),
        notes=("the log below has the pool's statistics: Limit - InUse is what was left", _NVIDIA_SMI),
    )


def copy(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge "Dst tensor is not initialized": a copy to the card found no room, most often."""
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=(
            "The card's memory most often: TensorFlow says this when a copy to the card found no room for its result; "
            "the text has no figures."
        ),
        remedies=(
            _GROWTH,
            estimate("a smaller batch, or the data in a tf.data.Dataset", "otherwise a whole array is copied at once"),
        ),
        notes=(_NVIDIA_SMI,),
    )


def not_a_failure(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge TensorFlow's remark that more memory would have made something faster."""
    asked = text_of_bytes(message.requested_bytes or 0)
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=(
            f"No failure: TensorFlow looked for {asked} of scratch memory to compute faster, did not get it, and goes "
            "on in another way."
        ),
        notes=("where the run did fail, its error comes later: give the whole log",),
    )


def pool(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge the beginning of TensorFlow's pool: it asks for nearly all of the card, then for less and less."""
    asked = text_of_bytes(message.requested_bytes or 0)
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=(
            f"TensorFlow wanted {asked} of the card at once for its pool and the driver had less; it then asks for "
            "less, so that this line alone is no failure."
        ),
        remedies=(_GROWTH,),
        notes=(_NVIDIA_SMI, "where the run did fail, its error comes later: give the whole log"),
    )


def pinned(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge host memory that TensorFlow could not pin."""
    asked = f" ({text_of_bytes(message.requested_bytes)})" if message.requested_bytes else ""
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=(
            f"The machine's own memory could not be pinned{asked}: TensorFlow's error reads as if it were the card's."
        ),
        remedies=(estimate("smaller batches, or less prefetching", "what goes to the card is pinned first"),),
        notes=("a limit of locked memory (ulimit -l), WSL or a container allows little pinned memory",),
    )
