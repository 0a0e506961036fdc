"""Collects the out-of-memory messages of a log, and selects the message to explain for each rank."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from ullage.recorded.message.counted_messages import Unread
from ullage.recorded.message.log import Found, FoundMessage, Mention
from ullage.recorded.message.message import Message
from ullage.recorded.message.printed_growth import PrintedGrowth
from ullage.recorded.message.printed_memory import PrintedMemory
from ullage.recorded.message.runs import RunStart
from ullage.recorded.message.wording import MessageKind

RECORDING: Final = (
    "torch.cuda.memory._record_memory_history()",
    "torch.cuda.memory._dump_snapshot('oom.pickle')",
)
"""The PyTorch calls that record a memory snapshot: the first at the start, the second where the error is caught."""
_NOTHING_UNREAD: Final = Unread(failures=0, warnings=0)
_MOST_RANKS: Final = 1024
_MOST_PRINTED: Final = 100
_PROGRAMS: Final = ("ComfyUI", "vLLM", "SGLang")
_OF_PYTORCH: Final = ("preempting", "asking_again")  # warnings of PyTorch's allocator, not of another program
_NO_SNAPSHOT_HELPS: Final = (MessageKind.HOST, MessageKind.KILLED, MessageKind.ON_CHIP, MessageKind.PROGRAM)
_OF_OTHERS: Final = {"vLLM", "SGLang", "TensorFlow", "CuPy", "CTranslate2", "onnxruntime", "another framework"}
_NO_SNAPSHOT_OF: Final = ("MPS", "METAL", "XPU", "NPU", "MUSA", "VULKAN")


@dataclass(slots=True, kw_only=True)
class Messages:
    """The out-of-memory messages of a log: how many there are, and which of them to explain."""

    deciding: FoundMessage | None = None
    warning: Message | None = None
    """The last warning from the same allocator before the explained message."""
    failures: int = 0
    repeated: int = 0
    """The number of failures with the same message as the first one."""
    warnings: int = 0
    ranks: dict[str, FoundMessage] = field(default_factory=dict)
    """Maps each rank's label in the log to the error message of that rank that ullage explains."""
    cards: dict[str, FoundMessage] = field(default_factory=dict)
    """Maps each GPU to the error message that ullage explains for it. Messages with a rank label are not included."""
    killed: FoundMessage | None = None
    """The first message that a process was killed because host memory ran out."""
    rest: Unread = _NOTHING_UNREAD
    """The number of messages in the log that were counted but not parsed."""
    mention: Mention | None = None
    """A line that mentions an out-of-memory error but that ullage cannot parse."""

    programs: dict[str, None] = field(default_factory=dict)
    """The programs that any message of the run names by its surroundings, such as "ComfyUI", in their order."""
    printed: list[PrintedMemory] = field(default_factory=list)
    """The memory figures that programs printed, without errors. At most the first and last hundred are kept."""
    growth: PrintedGrowth | None = None
    """The memory figures in the log that grow from line to line."""
    earlier: tuple[int, ...] = ()
    """The lines of the messages that ended earlier runs in the same log."""
    later_row: int | None = None
    """The line at which a later run without an out-of-memory error begins."""

    @classmethod
    def of(cls, found: Iterable[Found]) -> "Messages":
        """Collect what `ullage.recorded.message.log.scan` finds in a log.

        If the log has several runs, the messages of the newest run that ran out of memory are returned.
        """
        runs, starts = [cls()], [1]
        growth: PrintedGrowth | None = None
        is_loop = False
        for each in found:
            match each:
                case Unread():
                    runs[-1].rest = each
                case Mention():
                    runs[-1].mention = each
                case PrintedGrowth():
                    growth = each
                case PrintedMemory():
                    runs[-1].add_printed(each)
                case RunStart():
                    if not runs[0].failures and each.is_like_the_first:
                        is_loop = True  # the line comes again before any failure: it belongs to a loop
                    if runs[-1].failures and not (is_loop and each.is_like_the_first):
                        runs.append(cls(rest=runs[-1].rest))
                        starts.append(each.row)
                case FoundMessage():
                    runs[-1].add(each)
        index = next((at for at in reversed(range(len(runs))) if runs[at].failures), len(runs) - 1)
        chosen = runs[index]
        end = starts[index + 1] if index + 1 < len(starts) else None
        if growth is not None and growth.row >= starts[index] and (end is None or growth.row < end):
            chosen.growth = growth
        chosen.earlier = tuple(run.deciding.row for run in runs[:index] if run.deciding is not None)
        chosen.later_row = starts[index + 1] if index + 1 < len(runs) else None
        return chosen

    def add_printed(self, printed: PrintedMemory) -> None:
        """Add memory figures that a program printed."""
        if len(self.printed) >= 2 * _MOST_PRINTED:
            del self.printed[_MOST_PRINTED]
        self.printed.append(printed)

    def add(self, found: FoundMessage) -> None:
        """Add one message to the collection."""
        message = found.message
        if message.kind is MessageKind.WARNING:
            self.warnings += 1
            if self.failures == 0:
                self.warning = message
                self.deciding = self.deciding or found
            return
        if self.failures == 0 and self.rest.warnings:
            self.warning = None  # the last message before this failure was only counted
        self.failures += 1
        self.programs |= dict.fromkeys(name for name in found.context if name in _PROGRAMS)
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
            where, name = self.cards, f"GPU {found.message.device}"
        else:
            return
        if name in where or len(where) < _MOST_RANKS:
            current = where.get(name)
            where[name] = found if current is None or _goes_before(found, current) else current

    @property
    def each(self) -> dict[str, FoundMessage]:
        """The message to explain for each rank, or for each GPU if the log has no rank labels."""
        return self.ranks or self.cards

    def with_warning(self, message: Message) -> Message:
        """Return a failure's message. Figures that it lacks are taken from the allocator's last warning."""
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
        """Return notes that say what else the log contains, and how to record a snapshot of the next run."""
        notes = []
        total = self.failures + self.rest.failures
        if total > max(1, len(self.each)):  # the ranks' messages are in a separate table
            some = "them" if total == self.failures else f"the {self.failures} that were parsed"
            again = f", {self.repeated} of {some} identical" if self.repeated else ""
            number = total if total == self.failures else f"at least {total}"
            notes.append(
                f"{number} out-of-memory messages{again}; this report explains the one at line {found.row}, because "
                "later failures are often consequences of the first"
            )
        if self.earlier:
            lines = ", ".join(str(row) for row in self.earlier[:5]) + (" ..." if len(self.earlier) > 5 else "")
            notes.append(
                f"the text has the output of several runs; this report explains the newest that failed. Earlier runs "
                f"ran out of memory at line {lines}"
            )
        if self.later_row is not None:
            notes.append(f"a later run begins at line {self.later_row} and has no out-of-memory error")
        if self.killed is not None and found.message.kind is MessageKind.ALLOCATOR and self.killed.row > found.row:
            notes.append(
                f"line {self.killed.row} reports that host memory ran out too: that is not a consequence of the GPU "
                "error, and the run may have recovered from the GPU error"
            )
        if self.warnings and self.failures and self.warning is not None and self.warning.wording in _OF_PYTORCH:
            warnings = self.warnings + self.rest.warnings
            notes.append(
                f"before that, the allocator returned its cache to the driver and retried ({warnings} warnings)"
            )
        if _snapshot_helps(found):
            notes.append(
                f"an error message does not show what held the memory: call {RECORDING[0]} at the start and "
                f"{RECORDING[1]} where the error is caught, then run ullage explain oom.pickle"
            )
        return tuple(notes)


# Some allocators log an error without a traceback and then raise it. The log then has the message twice, and the
# traceback is directly before the second one. Return the first message with this traceback.
def _with_traceback(first: FoundMessage, again: FoundMessage) -> FoundMessage:
    if first.context or first.frames:
        return first
    return replace(first, context=again.context, place=again.place, statement=again.statement)


def _goes_before(found: FoundMessage, current: FoundMessage | None) -> bool:
    if current is None or current.message.kind is MessageKind.WARNING:
        return True
    # The same failure is often written twice: first by its name alone (DataParallel, a progress bar, a title or the
    # user's sentence about it), then in full.
    is_bare = current.message.wording in ("unknown", "bare") and not _has_figures(current.message)
    is_same = current.message.requested_bytes in (None, found.message.requested_bytes)
    if is_bare and is_same and found.message.kind is MessageKind.ALLOCATOR and _has_figures(found.message):
        return True
    return found.message.is_certain and not current.message.is_certain


def _has_figures(message: Message) -> bool:
    return message.total_bytes is not None or message.allocated_bytes is not None


def _snapshot_helps(found: FoundMessage) -> bool:
    message = found.message
    if message.kind in _NO_SNAPSHOT_HELPS or message.backend in _NO_SNAPSHOT_OF:
        return False
    if message.kind is MessageKind.WARNING and message.wording not in _OF_PYTORCH:
        return False
    return not _OF_OTHERS & set(found.context)
