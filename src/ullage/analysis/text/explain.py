"""The reason why memory ran out, from an error's text or a log: one cause, and numbers that add up to the card.

A text has sums and no addresses: it can show that memory was there, and never who cut it into pieces. Every remedy is
an estimate with its arithmetic; a snapshot lets `ullage.analysis.explain` prove them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from ullage._errors import UsageError
from ullage.analysis.explain import Explanation
from ullage.analysis.text.account import Account, account_of
from ullage.analysis.text.allocator_oom import judge_allocator, judge_preempted
from ullage.analysis.text.other_errors import judge_other
from ullage.analysis.text.verdict import TextVerdict
from ullage.message.counted_messages import Unread
from ullage.message.log import FoundMessage, pieces_of, scan
from ullage.message.message import Message
from ullage.message.wording import MessageKind

RECORDING: Final = (
    "torch.cuda.memory._record_memory_history()",
    "torch.cuda.memory._dump_snapshot('oom.pickle')",
)
"""The two calls that give a snapshot next time: the first at the start, the second where the error is caught."""
_NOTHING_UNREAD: Final = Unread(failures=0, warnings=0)
_RANKS_SHOWN: Final = 3  # ranks or lines that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExplanation:
    """An explanation and the message that it explains."""

    explanation: Explanation
    found: FoundMessage
    account: Account | None


def explain_text(text: str, *, source: str = "") -> TextExplanation:
    """Explain a text such as an error's or a log's.

    Raises:
        UsageError: the text says nothing about memory running out.
    """
    return explain_messages(scan(pieces_of(text)), source=source)


def explain_messages(messages: Iterable[FoundMessage | Unread], *, source: str = "") -> TextExplanation:
    """Explain what `ullage.message.log.scan` found: the first message that is certain decides.

    Raises:
        UsageError: there is no message.
    """
    count = _Count.of(messages)
    found = count.deciding
    if found is None:
        raise UsageError(
            f"{source or 'the text'} says nothing about memory running out: it contains no known error of PyTorch, "
            "CUDA or the system; give the whole error, or a snapshot"
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
        accumulation=None,
        remedies=verdict.remedies,
        notes=(*verdict.notes, *count.notes(found)),
    )
    return TextExplanation(explanation=explanation, found=replace(found, message=message), account=account)


@dataclass(slots=True, kw_only=True)
class _Count:
    """The messages of a text: counts, and the few that decide."""

    deciding: FoundMessage | None = None
    warning: Message | None = None
    """The last warning before the deciding message, of the same allocator."""
    failures: int = 0
    repeated: int = 0
    """Number of failures whose text is identical to the first one's."""
    warnings: int = 0
    ranks: list[str] | None = None
    rest: Unread = _NOTHING_UNREAD
    """Counts of the messages that were not read."""

    @classmethod
    def of(cls, messages: Iterable[FoundMessage | Unread]) -> "_Count":
        count = cls(ranks=[])
        for found in messages:
            if isinstance(found, Unread):
                count.rest = found
            else:
                count.add(found)
        return count

    def add(self, found: FoundMessage) -> None:
        message = found.message
        if message.kind is MessageKind.WARNING:
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
        if current is None or current.kind is MessageKind.WARNING or (message.is_certain and not current.is_certain):
            self.deciding = found

    def with_warning(self, message: Message) -> Message:
        """Add to an error the figures that it lacks, from the warning that the allocator printed before it."""
        before = self.warning
        if message.wording != "preempted" or before is None or before.wording != "preempting":
            return message
        return replace(
            message,
            total_bytes=before.total_bytes,
            allowed_bytes=before.allowed_bytes,
            reserved_bytes=before.reserved_bytes,
        )

    def notes(self, found: FoundMessage) -> tuple[str, ...]:
        """Return what else the text contains, and how to get a snapshot next time."""
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
            shown = ", ".join(self.ranks[:_RANKS_SHOWN]) + (" ..." if len(self.ranks) > _RANKS_SHOWN else "")
            least = "at least " if self.rest.failures else ""
            notes.append(f"{least}{len(self.ranks)} ranks or workers ran out ({shown}); the first decides")
        if self.warnings and self.failures:
            warnings = self.warnings + self.rest.warnings
            notes.append(f"before that the allocator gave its cache back and asked again ({warnings} warnings)")
        if found.message.kind not in (MessageKind.HOST, MessageKind.KILLED, MessageKind.ON_CHIP):
            notes.append(
                f"a text does not say who held the memory: call {RECORDING[0]} at the start and {RECORDING[1]} where "
                "the "
                "error is caught, then ullage explain oom.pickle"
            )
        return tuple(notes)


def _verdict(message: Message, account: Account | None, statement: str | None) -> TextVerdict:
    match message.kind:
        case MessageKind.ALLOCATOR:
            return judge_allocator(message, account)
        case MessageKind.LIMIT:
            return judge_preempted(message)
        case _:
            return judge_other(message, statement)


def _evidence(message: Message, account: Account | None, count: _Count) -> dict[str, int]:
    """Return the figures of the text and those that follow from them; in bytes unless a name says otherwise."""
    figures = {
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
        figures |= {
            "context_bytes": account.outside_bytes,
            "other_processes_bytes": account.others_bytes,
            "unnamed_bytes": account.unnamed_bytes,
        }
    if message.requested_bytes is not None and message.free_bytes is not None:
        usable = message.free_bytes + (message.unallocated_bytes or 0)
        figures["missing_bytes"] = max(0, message.requested_bytes - usable)
    found = {name: value for name, value in figures.items() if value is not None}
    return {**found, "messages": count.failures + count.rest.failures, "warnings": count.warnings + count.rest.warnings}
