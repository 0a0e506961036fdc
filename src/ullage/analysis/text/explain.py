"""Why memory ran out, as far as the error's text or a log tells: one cause, and numbers that add up to the card.

A text has sums and no addresses: it can show that memory was there, and never who cut it into pieces. Every remedy is
an estimate with its arithmetic; a snapshot lets `ullage.analysis.explain` prove them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from ullage._errors import UsageError
from ullage.analysis.explain import Explanation
from ullage.analysis.text.account import Account, account_of
from ullage.analysis.text.disguise import judge_other
from ullage.analysis.text.shortage import judge_allocator, judge_preempted
from ullage.analysis.text.verdict import Verdict
from ullage.message.log import Found, pieces_of, scan
from ullage.message.message import Message
from ullage.message.tally import Rest
from ullage.message.wording import Kind

RECORDING: Final = (
    "torch.cuda.memory._record_memory_history()",
    "torch.cuda.memory._dump_snapshot('oom.pickle')",
)
"""What to run at the start, and where the error is caught, to have a snapshot next time."""
_NO_REST: Final = Rest(failures=0, warnings=0)
_CONSEQUENCES: Final = 3  # ranks or lines that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExplanation:
    """An explanation, and the text that it is of."""

    explanation: Explanation
    found: Found
    account: Account | None


def explain_text(text: str, *, source: str = "") -> TextExplanation:
    """Explain a text such as an error's or a log's.

    Raises:
        UsageError: the text says nothing of memory running out.
    """
    return explain_messages(scan(pieces_of(text)), source=source)


def explain_messages(messages: Iterable[Found | Rest], *, source: str = "") -> TextExplanation:
    """Explain what `ullage.message.log.scan` found: the first message that is certain decides.

    Raises:
        UsageError: there is no message.
    """
    count = _Count.of(messages)
    found = count.deciding
    if found is None:
        raise UsageError(
            f"{source or 'the text'} says nothing of memory running out: no error of PyTorch's, CUDA's or the system's "
            "that is known stands in it; give the whole error, or a snapshot"
        )
    message = count.with_warning(found.message)
    account = account_of(message)
    verdict = _verdict(message, account, found.statement)
    explanation = Explanation(
        source=source,
        cause=verdict.cause,
        sentence=verdict.sentence,
        evidence=_evidence(message, account, count),
        failing_line=found.place,
        holders=(),
        pinning=(),
        pinning_set=(),
        growth=None,
        pile=None,
        remedies=verdict.remedies,
        departures=0,
        notes=(*verdict.notes, *count.notes(found)),
    )
    return TextExplanation(explanation=explanation, found=replace(found, message=message), account=account)


@dataclass(slots=True, kw_only=True)
class _Count:
    """All messages of a text, of which few are kept."""

    deciding: Found | None = None
    warning: Message | None = None
    """The last one before the message that decides, of the same line of the allocator."""
    failures: int = 0
    repeated: int = 0
    """Failures that say the same as the first, word for word."""
    warnings: int = 0
    ranks: list[str] | None = None
    rest: Rest = _NO_REST
    """Messages that were not read."""

    @classmethod
    def of(cls, messages: Iterable[Found | Rest]) -> "_Count":
        count = cls(ranks=[])
        for found in messages:
            if isinstance(found, Rest):
                count.rest = found
            else:
                count.add(found)
        return count

    def add(self, found: Found) -> None:
        message = found.message
        if message.kind is Kind.WARNING:
            self.warnings += 1
            if self.failures == 0:
                self.warning = message
                self.deciding = self.deciding or found
            return
        if self.failures == 0 and self.rest.warnings:
            self.warning = None  # the last one before this failure was only counted
        self.failures += 1
        assert self.ranks is not None
        if found.rank is not None and found.rank not in self.ranks and len(self.ranks) < 1024:
            self.ranks.append(found.rank)
        current = self.deciding.message if self.deciding is not None else None
        if current is not None and current.text == message.text and current.kind is message.kind:
            self.repeated += 1
        if current is None or current.kind is Kind.WARNING or (message.is_certain and not current.is_certain):
            self.deciding = found

    def with_warning(self, message: Message) -> Message:
        """What the allocator wrote before it refused has the figures that its error lacks."""
        before = self.warning
        if message.wording != "preempted" or before is None or before.wording != "preempting":
            return message
        return replace(
            message,
            total_bytes=before.total_bytes,
            allowed_bytes=before.allowed_bytes,
            reserved_bytes=before.reserved_bytes,
        )

    def notes(self, found: Found) -> tuple[str, ...]:
        """What else the text has, and what to do next time."""
        notes = []
        total = self.failures + self.rest.failures
        if total > 1:
            some = "them" if total == self.failures else f"the {self.failures} that were read"
            again = f", {self.repeated} of {some} word for word the same" if self.repeated else ""
            number = total if total == self.failures else f"at least {total}"
            notes.append(
                f"{number} messages of memory running out{again}; this is about the one at line {found.row}: "
                "what fails after a first failure is often its consequence"
            )
        if self.ranks and len(self.ranks) > 1:
            shown = ", ".join(self.ranks[:_CONSEQUENCES]) + (" ..." if len(self.ranks) > _CONSEQUENCES else "")
            least = "at least " if self.rest.failures else ""
            notes.append(f"{least}{len(self.ranks)} ranks or workers ran out ({shown}); the first decides")
        if self.warnings and self.failures:
            warnings = self.warnings + self.rest.warnings
            notes.append(f"before that the allocator gave its cache back and asked again ({warnings} warnings)")
        if found.message.kind not in (Kind.HOST, Kind.KILLED, Kind.ON_CHIP):
            notes.append(
                f"who held the memory is not in a text: run {RECORDING[0]} at the start and {RECORDING[1]} where the "
                "error is caught, then ullage explain oom.pickle"
            )
        return tuple(notes)


def _verdict(message: Message, account: Account | None, statement: str | None) -> Verdict:
    match message.kind:
        case Kind.ALLOCATOR:
            return judge_allocator(message, account)
        case Kind.LIMIT:
            return judge_preempted(message)
        case _:
            return judge_other(message, statement)


def _evidence(message: Message, account: Account | None, count: _Count) -> dict[str, int]:
    """The figures of the text, and those that follow from them; in bytes unless a name says otherwise."""
    told = {
        "requested_bytes": message.requested_bytes,
        "total_bytes": message.total_bytes,
        "free_bytes": message.free_bytes,
        "process_bytes": message.process_bytes,
        "allowed_bytes": message.allowed_bytes,
        "allocated_bytes": message.allocated_bytes,
        "private_pools_bytes": message.private_pools_bytes,
        "cached_bytes": message.unallocated_bytes,
        "reserved_bytes": message.reserved_bytes,
        "other_allocations_bytes": message.other_allocations_bytes,
        "reserve_bytes": message.reserve_bytes,
    }
    if account is not None:
        told |= {
            "context_bytes": account.outside_bytes,
            "other_processes_bytes": account.others_bytes,
            "unnamed_bytes": account.unnamed_bytes,
        }
    if message.requested_bytes is not None and message.free_bytes is not None:
        usable = message.free_bytes + (message.unallocated_bytes or 0)
        told["missing_bytes"] = max(0, message.requested_bytes - usable)
    found = {name: value for name, value in told.items() if value is not None}
    return {**found, "messages": count.failures + count.rest.failures, "warnings": count.warnings + count.rest.warnings}
