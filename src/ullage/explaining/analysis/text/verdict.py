"""The verdict on a text: the one cause, a sentence, and what would help."""

from dataclasses import dataclass
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.remedy import Remedy

_SETTINGS: Final = ("expandable_segments:", "expandable_segments_reserve:")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextVerdict:
    """The cause, the first sentence, estimates of what would help, and what else to know."""

    cause: Cause
    sentence: str
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()


def estimate(name: str, arithmetic: str) -> Remedy:
    """Return a remedy that nothing proves: a setting or an action, and the arithmetic behind it."""
    if name.startswith(_SETTINGS):
        return Remedy(setting=name, proved=False, remark=arithmetic)
    return Remedy(action=name, proved=False, remark=arithmetic)


def hold_less(allocated_bytes: int, missing_bytes: int) -> Remedy:
    """Return the estimate of how much less the run would have to hold.

    Args:
        allocated_bytes: what it held.
        missing_bytes: what was missing; zero or less where the text's rounding hides it.
    """
    if missing_bytes <= 0:
        return estimate(
            "use 1 % less memory at the peak: a smaller batch, or checkpointing",
            f"less is missing than the text's figures show, with {text_of_bytes(allocated_bytes)} allocated",
        )
    share = -(-100 * missing_bytes // (allocated_bytes + missing_bytes))
    return estimate(
        f"use {share} % less memory at the peak: a smaller batch, or checkpointing",
        f"{text_of_bytes(missing_bytes)} are missing, with {text_of_bytes(allocated_bytes)} allocated",
    )


SEE_NVIDIA_SMI: Final = "other programs may hold the card: see with nvidia-smi"
LEAVE_ROOM: Final = estimate(
    "torch.cuda.set_per_process_memory_fraction(0.9)",
    "a tenth of the card stays free for allocations outside PyTorch",
)
