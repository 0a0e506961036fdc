"""The cards of one snapshot, side by side: which of them failed, and what each of them held."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ullage.recorded.history import Action, History
from ullage.recorded.program import is_one_of
from ullage.recorded.rebuild.life import GIVEN_BACK, TAKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCard:
    """What a snapshot says of one card, without a replay; sizes in bytes."""

    device: int
    entries: int
    """Number of trace entries."""
    failures: int
    """Number of requests that failed."""
    failed_bytes: int | None
    """The size of the last request that failed."""
    allocated_bytes: int
    """Bytes of the blocks that are allocated at the end."""
    reserved_bytes: int
    """Bytes reserved at the end."""
    peak_reserved_bytes: int
    """The most bytes that were reserved while recording."""
    last_failure_us: int
    """The time of the last request that failed, in microseconds; -1 where none did or no time was recorded."""


def recorded_card(history: History) -> RecordedCard:
    """Look at one card's recording."""
    failed = np.flatnonzero(history.action == Action.OOM)
    sign = is_one_of(history.action, TAKEN).astype(np.int64) - is_one_of(history.action, GIVEN_BACK)
    later = np.cumsum((sign * history.size)[::-1])  # what the entries from each one on add
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
    """Look at every card of a snapshot, in order of their numbers; a card without entries and memory is left out.

    Where no card has any, all are returned.
    """
    cards = tuple(recorded_card(histories[device]) for device in sorted(histories))
    used = tuple(card for card in cards if card.failures or card.peak_reserved_bytes)
    return used or cards


def card_to_explain(cards: Iterable[RecordedCard]) -> int:
    """Return the number of the card that people ask about.

    It is the one that failed, the last to do so where several did; else the one that reserved most.
    """

    def rank(card: RecordedCard) -> tuple[bool, int, int, int, int]:
        return card.failures > 0, card.last_failure_us, card.peak_reserved_bytes, card.entries, -card.device

    return max(cards, key=rank).device
