"""The messages of a text, taken together: how many there are, and which decides, of the whole text and of each rank.

The module judges none of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from ullage.recorded.message.counted_messages import Unread
from ullage.recorded.message.log import FoundMessage, Mention
from ullage.recorded.message.message import Message
from ullage.recorded.message.wording import MessageKind

RECORDING: Final = (
    "torch.cuda.memory._record_memory_history()",
    "torch.cuda.memory._dump_snapshot('oom.pickle')",
)
"""The two calls that give a snapshot next time: the first at the start, the second where the error is caught."""
_NOTHING_UNREAD: Final = Unread(failures=0, warnings=0)
_MOST_RANKS: Final = 1024
_OF_PYTORCH: Final = ("preempting", "asking_again")  # warnings of PyTorch's allocator, not of another program
_NO_SNAPSHOT_HELPS: Final = (MessageKind.HOST, MessageKind.KILLED, MessageKind.ON_CHIP, MessageKind.PROGRAM)
_OF_OTHERS: Final = {"vLLM", "SGLang", "TensorFlow", "CuPy", "CTranslate2", "onnxruntime", "another framework"}
_NO_SNAPSHOT_OF: Final = ("MPS", "XPU", "NPU", "MUSA", "VULKAN")


@dataclass(slots=True, kw_only=True)
class Messages:
    """Counts of a text's messages, and the few that decide."""

    deciding: FoundMessage | None = None
    warning: Message | None = None
    """The last warning before the deciding message, of the same allocator."""
    failures: int = 0
    repeated: int = 0
    """Number of failures whose text is identical to the first one's."""
    warnings: int = 0
    ranks: dict[str, FoundMessage] = field(default_factory=dict)
    """The message that decides for each rank, by the mark of its lines."""
    cards: dict[str, FoundMessage] = field(default_factory=dict)
    """The same for each card, of messages whose lines are not marked."""
    killed: FoundMessage | None = None
    """The first message that the system ended a process for lack of its own memory."""
    rest: Unread = _NOTHING_UNREAD
    """Counts of the messages that were not read."""
    mention: Mention | None = None
    """A place that speaks of memory running out in words that are not known."""

    @classmethod
    def of(cls, messages: Iterable[FoundMessage | Unread | Mention]) -> "Messages":
        """Go through what `ullage.recorded.message.log.scan` finds."""
        together = cls()
        for found in messages:
            if isinstance(found, Unread):
                together.rest = found
            elif isinstance(found, Mention):
                together.mention = found
            else:
                together.add(found)
        return together

    def add(self, found: FoundMessage) -> None:
        """Take one more message."""
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
        if message.kind is MessageKind.KILLED and message.is_certain:
            self.killed = self.killed or found
        self._add_rank(found)
        current = self.deciding
        if current is not None and current.message.text == message.text and current.message.kind is message.kind:
            self.repeated += 1
            self.deciding = current = _with_traceback(current, found)
        if _goes_before(found, current):
            self.deciding = found

    def _add_rank(self, found: FoundMessage) -> None:
        if found.rank is not None:
            where, name = self.ranks, found.rank
        elif found.message.device is not None:
            where, name = self.cards, f"card {found.message.device}"
        else:
            return
        if name in where or len(where) < _MOST_RANKS:
            current = where.get(name)
            where[name] = found if current is None or _goes_before(found, current) else current

    @property
    def each(self) -> dict[str, FoundMessage]:
        """What decides for each rank; where no line is marked, for each card."""
        return self.ranks or self.cards

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
        if total > max(1, len(self.each)):  # what each rank said is in a table of its own
            some = "them" if total == self.failures else f"the {self.failures} that were read"
            again = f", {self.repeated} of {some} word for word the same" if self.repeated else ""
            number = total if total == self.failures else f"at least {total}"
            notes.append(
                f"{number} messages of memory running out{again}; this is about the one at line {found.row}: "
                "what fails after a first failure is often its consequence"
            )
        if self.killed is not None and found.message.kind is MessageKind.ALLOCATOR and self.killed.row > found.row:
            notes.append(
                f"line {self.killed.row} is of the machine's own memory, which ran out as well: that is no consequence "
                "of the card's, and the run may have got over the card's"
            )
        if self.warnings and self.failures and self.warning is not None and self.warning.wording in _OF_PYTORCH:
            warnings = self.warnings + self.rest.warnings
            notes.append(f"before that the allocator gave its cache back and asked again ({warnings} warnings)")
        if _snapshot_helps(found):
            notes.append(
                f"a text does not say who held the memory: call {RECORDING[0]} at the start and {RECORDING[1]} where "
                "the error is caught, then ullage explain oom.pickle"
            )
        return tuple(notes)


def _with_traceback(first: FoundMessage, again: FoundMessage) -> FoundMessage:
    """Return a message with what stands before its repetition, where nothing stood before itself.

    Some allocators write an error into the log when they raise it, and the traceback follows.
    """
    if first.context or first.place is not None:
        return first
    return replace(first, context=again.context, place=again.place, statement=again.statement)


def _goes_before(found: FoundMessage, current: FoundMessage | None) -> bool:
    """Tell whether a message decides rather than one above it: what is certain goes before what is likely."""
    if current is None or current.message.kind is MessageKind.WARNING:
        return True
    return found.message.is_certain and not current.message.is_certain


def _snapshot_helps(found: FoundMessage) -> bool:
    """Tell whether a snapshot of PyTorch's allocator would say more than the text."""
    message = found.message
    if message.kind in _NO_SNAPSHOT_HELPS or message.backend in _NO_SNAPSHOT_OF:
        return False
    if message.kind is MessageKind.WARNING and message.wording not in _OF_PYTORCH:
        return False
    return not _OF_OTHERS & set(found.context)
