"""Estimate the time that changes add to a training step. The estimates are calculated, not measured."""

# PyTorch's FLOP counter (`torch.utils.flop_counter`) counts the operations. The bytes that are copied to the host and
# back are those of the journal; they are divided by a fixed bandwidth, which the estimate names.

from dataclasses import dataclass
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.predicting.advice.trial import Combination
from ullage.predicting.changes.training.facts import TrainingFacts

HOST_BANDWIDTH: Final = 12 << 30
"""The assumed bandwidth between the GPU and pinned host memory, in bytes per second (PCIe 3.0 x16).

PCIe 4.0 is twice as fast.
"""
_SMALL: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """The time and computation that a combination of changes adds to a step."""

    flops: int | None
    """The floating-point operations of a step with the changes, or None if unknown."""
    base_flops: int | None
    """The floating-point operations of a step without changes, or None if unknown."""
    host_bytes: int
    """The bytes that the changes copy to the host in each training step. The same number of bytes is copied back."""
    offloads: bool = False
    """Whether a change copies activations to the host.

    The copied bytes are known only for the repeated blocks of a model.
    """

    @property
    def added_share(self) -> float | None:
        """The relative increase in floating-point operations per step: 0.17 means 17 % more. None if unknown."""
        if not self.flops or not self.base_flops:
            return None
        return self.flops / self.base_flops - 1

    @property
    def text(self) -> str:
        """The added time as text for reports. Empty if the changes add no time."""
        if not self.host_bytes:
            return self.short
        seconds = 2 * self.host_bytes / HOST_BANDWIDTH
        at = f"at {HOST_BANDWIDTH >> 30} GiB/s, if no computation overlaps the copies"
        return f"{self.short} and back in each step (about {seconds:.2f} s {at})"

    @property
    def short(self) -> str:
        """The added time as a short text, without the time for copies to the host."""
        parts = []
        share = self.added_share
        if share is not None and share > _SMALL:
            parts.append(f"about {round(100 * share)} % more computation")
        if self.host_bytes:
            parts.append(f"{text_of_bytes(self.host_bytes)} copied to the host")
        return ", ".join(parts)

    @property
    def order(self) -> float:
        """A sort key by added time, in which changes that copy data to the host come last."""
        return (self.added_share or 0.0) + self.offloads


def estimate_of(combination: Combination, facts: TrainingFacts) -> TimeEstimate:
    """Estimate the time that a combination of changes adds to a training step."""
    added = sum(
        part.change.added_flops(facts, part.setting)
        for part in combination.parts
        if part.change.added_flops is not None
    )
    offloads = any(part.change.key == "offload" for part in combination.parts)
    saved = sum(each.saved_bytes * each.count for each in facts.model.block_lists) if facts.model else 0
    return TimeEstimate(
        flops=facts.step_flops + added if facts.step_flops else None,
        base_flops=facts.step_flops or None,
        host_bytes=saved if offloads else 0,
        offloads=offloads,
    )
