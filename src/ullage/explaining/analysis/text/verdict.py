"""The verdict on an error message: one cause, one sentence that explains it, and what may help."""

from dataclasses import dataclass
from typing import Final

from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.remedy import Remedy

_SETTINGS: Final = ("expandable_segments:", "expandable_segments_reserve:")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextVerdict:
    """The explanation of one message: the cause, the first sentence, estimates of what may help, and notes."""

    cause: Cause
    sentence: str
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()


def estimate(name: str, arithmetic: str) -> Remedy:
    """Return a remedy that no replay proves: a setting or an action, and the arithmetic that supports it."""
    if name.startswith(_SETTINGS):
        return Remedy(setting=name, proved=False, remark=arithmetic)
    return Remedy(action=name, proved=False, remark=arithmetic)


SEE_NVIDIA_SMI: Final = "other programs may use the GPU: list them with nvidia-smi"
LEAVE_ROOM: Final = estimate(
    "torch.cuda.set_per_process_memory_fraction(0.9)",
    "leaves a tenth of the GPU's memory free for allocations outside PyTorch",
)
