"""Reads from the driver how much GPU memory is used before, during and after a function in a separate process.

The values include all processes on the GPU.
"""

import os
import time
from dataclasses import dataclass
from typing import Any, Final

from ullage.base.driver import DriverCount, count_used
from ullage.base.units import text_of_bytes
from ullage.gpu.emulator.emulate import CARD_VARIABLE

_RETURN_SECONDS: Final = 2.0  # maximum time for the driver to take back a process's memory
_TICK_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUse:
    """The used memory of one GPU in bytes: before a function ran, when it ended, and after its process ended."""

    index: int
    name: str
    before_bytes: int
    within_bytes: int | None
    """The used bytes when the function ended. None if the process could not query the driver."""
    after_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCheck:
    """The used GPU memory before a function ran, when it ended, and after its process ended."""

    process: int
    """The ID of the process in which the function ran."""
    cards: tuple[CardUse, ...]
    why_not: str
    """The reason why the driver could not be queried. Empty if it was queried."""
    is_emulated: bool

    @property
    def came_back(self) -> bool:
        """Whether the driver took back all GPU memory that the function's process used.

        It is True if each GPU uses no more memory than before. It is False if the driver could not be queried.
        """
        return bool(self.cards) and all(card.after_bytes <= card.before_bytes for card in self.cards)

    def __str__(self) -> str:
        if self.why_not:
            return f"not measured: {self.why_not}"
        source = "the emulated GPU's count" if self.is_emulated else "the driver's count (NVML)"
        return "\n".join(f"{_sentence(card)}; {source}" for card in self.cards)


def prove(process: int, before: DriverCount, note: dict[str, Any] | None) -> DriverCheck:
    """Query the driver after the process has ended. Return the used memory before, during and after the function.

    Args:
        process: the ID of the process.
        before: the used memory before the process started.
        note: the JSON data that the process has sent, with the used memory at the function's end under "count"; None if
            it sent nothing.
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
        # An emulated GPU counts only the process that asks: the use of two processes on one emulated GPU is the sum of
        # both counts.
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
        f"GPU {card.index} ({card.name}): {text_of_bytes(card.before_bytes)} used before, {within} when the function "
        f"ended, {text_of_bytes(card.after_bytes)} after"
    )
