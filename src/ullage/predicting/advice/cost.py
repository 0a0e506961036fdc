"""What changes cost in time: an estimate with its arithmetic, never a measurement.

Operations are counted by PyTorch's own flop counter (`torch.utils.flop_counter`); bytes that go to the host and come
back are those of the journal, over a bandwidth that is stated.
"""

from dataclasses import dataclass
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.predicting.advice.trial import Combination
from ullage.predicting.changes.training.facts import TrainingFacts

HOST_BANDWIDTH: Final = 12 << 30
"""Bytes a second between the card and pinned memory: what PCIe 3.0 x16 gives in practice; 4.0 gives twice as much."""
_SMALL: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """What a combination of changes adds to a step."""

    flops: int | None
    """The floating-point operations of a step; None where they could not be counted."""
    base_flops: int | None
    """The same without a change."""
    host_bytes: int
    """The bytes that go to the host and come back in every step."""
    offloads: bool = False
    """Whether bytes go to the host at all: how many is known of repeated blocks only."""

    @property
    def added_share(self) -> float | None:
        """The share of computation that comes on top: 0.17 is 17 % more; None where nobody counted."""
        if not self.flops or not self.base_flops:
            return None
        return self.flops / self.base_flops - 1

    @property
    def text(self) -> str:
        """The estimate in words; "" where nothing is added."""
        if not self.host_bytes:
            return self.short
        seconds = 2 * self.host_bytes / HOST_BANDWIDTH
        at = f"at {HOST_BANDWIDTH >> 30} GiB/s, if nothing hides it"
        return f"{self.short} and back in a step (about {seconds:.2f} s {at})"

    @property
    def short(self) -> str:
        """The estimate in few words, without the arithmetic of time; "" where nothing is added."""
        parts = []
        share = self.added_share
        if share is not None and share > _SMALL:
            parts.append(f"about {round(100 * share)} % more computation")
        if self.host_bytes:
            parts.append(f"{text_of_bytes(self.host_bytes)} to the host")
        return ", ".join(parts)

    @property
    def order(self) -> float:
        """A number to order by: what moves bytes to the host last, as that takes longer than computing them again."""
        return (self.added_share or 0.0) + self.offloads


def estimate_of(combination: Combination, facts: TrainingFacts) -> TimeEstimate:
    """Return what a combination adds to a step, by what the unchanged run tells."""
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
