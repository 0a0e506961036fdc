"""The explanation of an error message: its cause, a sentence about it, and what may help."""

from dataclasses import dataclass
from typing import Final

from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.remedy import Remedy

_SETTINGS: Final = ("expandable_segments:", "expandable_segments_reserve:")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextVerdict:
    """The explanation of one error message: the cause, a first sentence, possible remedies, and notes."""

    cause: Cause
    sentence: str
    likely: Cause | None = None
    """A guess: the cause that fits the text best, if `cause` is `CANNOT_TELL` or too general."""
    is_sure: bool = True
    """Whether the text proves the cause. Otherwise, the headline begins with "PROBABLY"."""
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()


def estimate(name: str, arithmetic: str) -> Remedy:
    """Return a remedy that was not simulated, together with the calculation that supports it."""
    if name.startswith(_SETTINGS):
        return Remedy(setting=name, proved=False, remark=arithmetic)
    return Remedy(action=name, proved=False, remark=arithmetic)


def headline_of(verdict: TextVerdict) -> str:
    """Return the headline of a report: the cause, or a guess that is labelled as a guess."""
    if verdict.likely not in (None, verdict.cause):
        return f"PROBABLY {verdict.likely.heading}"
    if not verdict.is_sure:
        return f"PROBABLY {verdict.cause.heading}"
    return verdict.cause.heading


SEE_NVIDIA_SMI: Final = "other programs may use the GPU: list them with nvidia-smi"
LEAVE_ROOM: Final = estimate(
    "torch.cuda.set_per_process_memory_fraction(0.9)",
    "leaves a tenth of the GPU's memory free for allocations outside PyTorch",
)
