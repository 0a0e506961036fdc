"""An overview of the GPUs in a memory snapshot. It shows which GPUs ran out of memory, and how much memory each one
held.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ullage.recorded.history import Action, History
from ullage.recorded.program import is_one_of
from ullage.recorded.rebuild.life import GIVEN_BACK, TAKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCard:
    """The memory statistics of one GPU, read from a memory snapshot. Sizes are in bytes."""

    device: int
    entries: int
    """The number of trace entries."""
    failures: int
    """The number of allocations that failed."""
    failed_bytes: int | None
    """The size in bytes of the last allocation that failed, or None."""
    allocated_bytes: int
    """The allocated memory at the end of the recording, in bytes."""
    reserved_bytes: int
    """The reserved memory at the end of the recording, in bytes."""
    peak_reserved_bytes: int
    """The peak of reserved memory in the recording, in bytes."""
    last_failure_us: int
    """The time of the last failed allocation in microseconds, or -1 if unknown."""


def recorded_card(history: History) -> RecordedCard:
    """Return the memory statistics of one GPU from its recording."""
    failed = np.flatnonzero(history.action == Action.OOM)
    sign = is_one_of(history.action, TAKEN).astype(np.int64) - is_one_of(history.action, GIVEN_BACK)
    later = np.cumsum(
        (sign * history.size)[::-1]
    )  # for each entry, the bytes that it and all later entries add to reserved memory
    blocks = [block for segment in history.segments for block in segment.blocks]
    return RecordedCard(
        device=history.device,
        entries=len(history),
        failures=len(failed),
        failed_bytes=int(history.size[failed[-1]]) if len(failed) else None,
        allocated_bytes=sum(block.size for block in blocks if block.state == "active_allocated"),
        reserved_bytes=history.reserved_bytes,
        peak_reserved_bytes=history.reserved_bytes - min(0, int(later.min(initial=0))),
        last_failure_us=int(history.time_us[failed[-1]]) if len(failed) else -1,
    )


def recorded_cards(histories: Mapping[int, History]) -> tuple[RecordedCard, ...]:
    """Return the memory statistics of every GPU in a snapshot, ordered by device index. Unused GPUs are left out."""
    cards = tuple(recorded_card(histories[device]) for device in sorted(histories))
    used = tuple(card for card in cards if card.failures or card.peak_reserved_bytes)
    return used or cards


def card_to_explain(cards: Iterable[RecordedCard]) -> int:
    """Return the device index of the GPU to explain. It is the GPU that ran out of memory last, or else the GPU that
    reserved most.
    """

    def rank(card: RecordedCard) -> tuple[bool, int, int, int, int]:
        return card.failures > 0, card.last_failure_us, card.peak_reserved_bytes, card.entries, -card.device

    return max(cards, key=rank).device
