"""The driver's count of used memory before, at the end of, and after a function that ran in a process of its own.

The driver does not say whose memory it is: if others use the card, changes of theirs are included.
"""

import os
import time
from dataclasses import dataclass
from typing import Any, Final

from ullage.base.driver import DriverCount, count_used
from ullage.base.units import text_of_bytes
from ullage.gpu.emulator.emulate import CARD_VARIABLE

_RETURN_SECONDS: Final = 2.0  # for the driver to take back what a process had
_TICK_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUse:
    """One card's used memory by the driver's count, all processes together, in bytes."""

    index: int
    name: str
    before_bytes: int
    within_bytes: int | None
    """The used bytes when the function had returned or raised; None if its process ended before it could ask."""
    after_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCheck:
    """The driver's count before, at the end of, and after a function that ran in a process of its own."""

    process: int
    """The id of the function's process."""
    cards: tuple[CardUse, ...]
    why_not: str
    """The reason why nothing was counted; empty if it was."""
    is_emulated: bool

    @property
    def came_back(self) -> bool:
        """Whether no card has more memory in use than before; also false if nothing was counted."""
        return bool(self.cards) and all(card.after_bytes <= card.before_bytes for card in self.cards)

    def __str__(self) -> str:
        if self.why_not:
            return f"not measured: {self.why_not}"
        source = "the emulated card's count" if self.is_emulated else "the driver's count (NVML)"
        return "\n".join(f"{_sentence(card)}; {source}" for card in self.cards)


def prove(process: int, before: DriverCount, note: dict[str, Any] | None) -> DriverCheck:
    """Count again, now that the process has ended, and return all counts.

    Args:
        process: the id of the process.
        before: the count before the process started.
        note: the note of its answer, with its own count under "count"; None if it gave no answer.
    """
    until = time.monotonic() + _RETURN_SECONDS
    while True:
        after = count_used()
        uses = _uses(before, note, after)
        if all(use.after_bytes <= use.before_bytes for use in uses) or time.monotonic() > until:
            break
        time.sleep(_TICK_SECONDS)
    return DriverCheck(
        process=process,
        cards=uses,
        why_not=before.why_not or after.why_not,
        is_emulated=bool(os.environ.get(CARD_VARIABLE)),
    )


def _uses(before: DriverCount, note: dict[str, Any] | None, after: DriverCount) -> tuple[CardUse, ...]:
    within = {card["index"]: card["used_bytes"] for card in note["count"]["cards"]} if note else {}
    if os.environ.get(CARD_VARIABLE):
        # An emulated card knows the process that asks and no other: two of them share one card only in sum.
        within = {card.index: card.used_bytes + within[card.index] for card in before.cards if card.index in within}
    later = {card.index: card for card in after.cards}
    return tuple(
        CardUse(
            index=card.index,
            name=card.name,
            before_bytes=card.used_bytes,
            within_bytes=within.get(card.index),
            after_bytes=later[card.index].used_bytes,
        )
        for card in before.cards
        if card.index in later
    )


def _sentence(card: CardUse) -> str:
    within = "unknown" if card.within_bytes is None else text_of_bytes(card.within_bytes)
    return (
        f"card {card.index} ({card.name}): {text_of_bytes(card.before_bytes)} used before, {within} at the function's "
        f"end, {text_of_bytes(card.after_bytes)} after"
    )
