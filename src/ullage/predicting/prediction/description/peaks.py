"""The cells of a table's row for the peaks of a run: of a rank, a process, a seed, a run beside another."""

from typing import Protocol

from ullage.base.units import text_of_bytes
from ullage.predicting.prediction.data.prediction import Verdict


class RunWithPeaks(Protocol):
    """A run whose peaks are told, in bytes, and what they mean."""

    @property
    def verdict(self) -> Verdict: ...
    @property
    def peak_allocated_bytes(self) -> int: ...
    @property
    def peak_reserved_bytes(self) -> int: ...


def cells_of_peaks(run: RunWithPeaks, mark: str = "") -> tuple[str, str, str]:
    """Return allocated, reserved and verdict, with a mark behind."""
    return text_of_bytes(run.peak_allocated_bytes), text_of_bytes(run.peak_reserved_bytes), run.verdict.value + mark
