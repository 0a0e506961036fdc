"""The facts that a text states or suggests about a failure, and the fact that decided the cause.

An explanation is derived from one message and what surrounds it. The list of facts shows what was read: the figures of
the message, who holds memory, what the program was doing, and what the log shows besides.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.account import Account
from ullage.explaining.analysis.text.actions import tensor_of
from ullage.explaining.analysis.text.phase import FailurePhase
from ullage.explaining.analysis.text.situation import Situation
from ullage.recorded.message.log import FoundMessage
from ullage.recorded.message.message import Message
from ullage.recorded.message.printed_growth import PrintedGrowth
from ullage.recorded.message.printed_memory import PrintedMemory


class FactKind(StrEnum):
    """What a fact is about. The value is its name in reports."""

    MESSAGE = "the message"
    REQUEST = "the request"
    FREE = "free memory"
    MISSING = "missing memory"
    LIMIT = "a limit"
    OTHERS = "other processes"
    PHASE = "what the program was doing"
    FIELD = "the field of the program"
    TENSOR = "the tensor"
    MACHINE = "the machine"
    PRINTED = "printed figures"
    GROWTH = "growth"


class FactCertainty(StrEnum):
    """How a fact is known."""

    STATED = "stated in the text"
    COMPUTED = "computed from stated figures"
    INFERRED = "inferred"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One fact about a failure."""

    kind: FactKind
    text: str
    certainty: FactCertainty
    has_decided: bool = False
    """Whether the cause follows from this fact more than from the others."""


_DECIDING: Final = {
    # the facts from which a cause follows, the strongest first
    Cause.TRULY_FULL: (FactKind.MISSING, FactKind.TENSOR, FactKind.PHASE, FactKind.PRINTED, FactKind.REQUEST),
    Cause.FRAGMENTED: (FactKind.FREE, FactKind.PRINTED),
    Cause.OTHER_PROCESS: (FactKind.OTHERS, FactKind.PHASE),
    Cause.LIMIT: (FactKind.LIMIT, FactKind.FREE),
    Cause.COMMIT_LIMIT: (FactKind.MESSAGE, FactKind.FREE),
    Cause.UNIFIED_MEMORY: (FactKind.MACHINE,),
    Cause.PINNED_MEMORY: (FactKind.PHASE,),
    Cause.BOGUS_SIZE: (FactKind.REQUEST,),
    Cause.LEAK: (FactKind.GROWTH,),
}


def facts_of(
    found: FoundMessage | None,
    account: Account | None,
    situation: Situation | None,
    printed: Sequence[PrintedMemory],
    growth: PrintedGrowth | None,
    cause: Cause,
) -> tuple[Fact, ...]:
    """Return the facts of a text. The one that decided the cause is marked.

    Args:
        found: the explained message, or None if the text has none.
        account: the completed figures of the message.
        situation: what the program was doing.
        printed: the memory figures that programs printed.
        growth: memory figures that grow from line to line.
        cause: the cause that the report names.
    """
    facts = list(_facts(found, account, situation, printed, growth))
    kinds = [fact.kind for fact in facts]
    wanted = (*_DECIDING.get(cause, ()), FactKind.MESSAGE, FactKind.PRINTED, FactKind.GROWTH)
    decided = next((kinds.index(kind) for kind in wanted if kind in kinds), None)
    return tuple(
        Fact(kind=fact.kind, text=fact.text, certainty=fact.certainty, has_decided=index == decided)
        for index, fact in enumerate(facts)
    )


def _facts(
    found: FoundMessage | None,
    account: Account | None,
    situation: Situation | None,
    printed: Sequence[PrintedMemory],
    growth: PrintedGrowth | None,
) -> Iterator[Fact]:
    if found is not None:
        yield _stated(FactKind.MESSAGE, f"line {found.row} of the text")
        yield from _figures(found.message)
    if account is not None:
        yield from _others(account)
    if situation is not None:
        yield from _doing(situation)
    if found is not None and "unified memory" in found.context:
        yield Fact(
            kind=FactKind.MACHINE,
            text="the text names a machine whose GPU uses the memory of the CPU",
            certainty=FactCertainty.INFERRED,
        )
    if printed:
        last = printed[-1]
        yield _stated(FactKind.PRINTED, f"line {last.row}: figures of {last.printer}")
    if growth is not None:
        text = (
            f"lines {growth.row} to {growth.last_row}: from {_size(growth.first_bytes)} to {_size(growth.last_bytes)}"
        )
        yield _stated(FactKind.GROWTH, text)


def _figures(message: Message) -> Iterator[Fact]:
    requested, free, cached = message.requested_bytes, message.free_bytes, message.unallocated_bytes
    if requested is not None:
        yield _stated(FactKind.REQUEST, f"{_size(requested)} requested")
    if free is not None:
        more = f", and {_size(cached)} cached by PyTorch" if cached else ""
        yield _stated(FactKind.FREE, f"{_size(free)} free{more}")
    if requested is not None and free is not None and requested > free + (cached or 0):
        yield Fact(
            kind=FactKind.MISSING,
            text=f"{_size(requested - free - (cached or 0))}, even if all cached memory were usable",
            certainty=FactCertainty.COMPUTED,
        )
    if message.allowed_bytes is not None:
        yield _stated(FactKind.LIMIT, f"PyTorch may reserve {_size(message.allowed_bytes)}")


def _others(account: Account) -> Iterator[Fact]:
    if account.others_bytes:
        yield _stated(FactKind.OTHERS, f"hold {_size(account.others_bytes)}")
    elif account.unnamed_bytes:
        text = f"or libraries hold {_size(account.unnamed_bytes)}, which the message assigns to nobody"
        yield Fact(kind=FactKind.OTHERS, text=text, certainty=FactCertainty.COMPUTED)


def _doing(situation: Situation) -> Iterator[Fact]:
    if situation.phase is not FailurePhase.UNKNOWN:
        frame = situation.shown_by
        where = f" ({frame.statement})" if frame is not None and frame.statement else ""
        yield Fact(kind=FactKind.PHASE, text=f"{situation.phase}{where}", certainty=FactCertainty.INFERRED)
    if situation.domain is not None:
        yield Fact(kind=FactKind.FIELD, text=situation.domain.name, certainty=FactCertainty.INFERRED)
    if (tensor := tensor_of(situation)) is not None:
        yield Fact(kind=FactKind.TENSOR, text=f"probably {tensor[0]}", certainty=FactCertainty.INFERRED)


def _stated(kind: FactKind, text: str) -> Fact:
    return Fact(kind=kind, text=text, certainty=FactCertainty.STATED)


def _size(size_bytes: int) -> str:
    return text_of_bytes(size_bytes)
