"""Parses out-of-memory messages into numbers. Other modules search logs and explain the causes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ullage.base.units import BOGUS_BYTES
from ullage.recorded.message.counted_messages import BY_FIND, EXCEPTIONS, CountedMessages
from ullage.recorded.message.figure import bytes_of, read_figures
from ullage.recorded.message.wording import DEVICE, PROCESS, SIZES, MessageKind, Words

WINDOW: Final = 4096
"""The largest length of an out-of-memory message in characters."""
# Matches the end of a message that is cut within the memory of the process.
_CUT_PROCESS: Final = re.compile(r"(?<=Including non-PyTorch memory, )this process has \d[\d.]{0,12}", re.ASCII)
_WORD: Final = re.compile(r"[ _]")
# The smallest size in bytes that means "no limit" or "unknown". On WSL and Windows, a driver that reports no size gives
# 2^64.
_NONSENSE_BYTES: Final = 1 << 60
# The largest number of characters between two figures of one out-of-memory message. A figure that is further away
# belongs to other text.
_MOST_GAP_CHARACTERS: Final = 240
_QUOTED_CHARACTERS: Final = 600
_LINE_CHARACTERS: Final = 160
_PROGRAM_LINE_CHARACTERS: Final = 400
# The largest length in characters of an out-of-memory message of another program. The figures on the lines below it are
# included.
_PROGRAM_CHARACTERS: Final = 1200
_SENTENCE: Final = re.compile(r"[^.;)\n]{0,80}[.;)]")
_EXPANDABLE_IS_ON: Final = "expandable_segments is enabled"
# Matches other white space or the end of a line. If the log puts a rank or a time at the start of the next line, this
# is matched as well.
_EDGE: Final = re.compile(
    r"\s*\n(?:"
    r"\[\w{1,12}\]:?"  # torchrun's mark of a rank
    r"|\(\w[^()\n]{0,60}\bpid=\d{1,9}[^()\n]{0,60}\)"  # Ray's and vLLM's mark of a worker
    r"|(?:INFO|WARNING|ERROR) \d\d-\d\d [\d:]{8} \[?[\w./]{1,60}:\d{1,6}\]"  # vLLM's logger
    r"|\[?\d{4}-\d\d-\d\d[T ][\d:.,]{5,20}Z?\]?"  # a date and time
    r"|[\w.-]{1,40} {1,4}\|"  # docker compose
    r"|[\s>|]"
    r")*|\s+"
)


@dataclass(frozen=True, slots=True)
class OtherProcess:
    """Another process that uses the GPU, identified by the process ID that the driver reports."""

    number: int
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The parsed content of one out-of-memory message. Values that it does not contain are None."""

    kind: MessageKind
    wording: str
    """The name that ullage gives to this kind of message text, such as "of_which_free" or "reserved_in_total"."""
    text: str
    """At most 600 characters of the message, on one line."""
    is_certain: bool
    """Whether the message says explicitly that memory ran out, and does not only suggest it."""
    backend: str | None = None
    """The software that printed the message, such as CUDA, HIP, CUBLAS or NCCL."""
    requested_bytes: int | None = None
    device: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    process_bytes: int | None = None
    """The bytes of GPU memory that the failed process uses, including memory outside PyTorch."""
    other_processes: tuple[OtherProcess, ...] = ()
    allowed_bytes: int | None = None
    """The most bytes that the allocator may use, or None without a limit."""
    allocated_bytes: int | None = None
    private_pools_bytes: int | None = None
    """The bytes in private pools of CUDA graphs and of `torch.cuda.MemPool`. They are part of `allocated_bytes`."""
    unallocated_bytes: int | None = None
    """The bytes that PyTorch's allocator has reserved but that no tensor uses."""
    reserved_bytes: int | None = None
    """The bytes that PyTorch's allocator has reserved from the driver."""
    other_allocations_bytes: int | None = None
    """The bytes outside PyTorch's allocator. Only messages from Apple GPUs report them."""
    reserve_bytes: int | None = None
    """The size in bytes of an expandable segment's address range, if the allocation exceeded it."""
    is_expandable: bool = False
    """Whether the message says that expandable segments were enabled."""
    host_used_bytes: int | None = None
    """The bytes of host memory in use by all programs."""
    host_total_bytes: int | None = None
    """The total host memory in bytes."""
    said: Mapping[str, str] = field(default_factory=dict)
    """Further values from another program's message, as text, such as {"utilization": "0.9"}."""


@dataclass(frozen=True, slots=True)
class Hit:
    """An out-of-memory message and its position in the text."""

    start: int
    end: int
    message: Message


def read_message(text: str) -> Message | None:
    """Parse the first out-of-memory message of a text such as `str(exception)`. Return None if there is none."""
    return next((hit.message for hit in hits_of(text[: 1 << 16])), None)


def hits_of(
    text: str, begin: int = 0, until: int | None = None, counted: CountedMessages | None = None
) -> Iterator[Hit]:
    """Yield the out-of-memory messages that begin between the positions `begin` and `until`, in order."""
    until = len(text) + 1 if until is None else until
    found = sorted(
        (place for place in _found(text, begin, until, counted) if place.start >= begin),
        key=lambda place: (place.start, -place.end),
    )
    heads = [place.start for place in found if place.words.has_sizes]
    taken, head = 0, 0
    for at, place in enumerate(found):
        if place.start >= until:
            break
        # If the exception's name comes before known words, the known words are the message.
        if place.start < taken or (place.words.wording == "unknown" and _is_followed(text, found, at, counted)):
            continue
        while head < len(heads) and heads[head] < place.end:
            head += 1
        stop = min(place.start + WINDOW, heads[head] if head < len(heads) else len(text))
        if counted is not None and place.words.has_sizes:
            stop = counted.next_head(text, place.end, stop, with_sizes=True)
        hit = _hit(text, place, max(stop, place.end))
        taken = hit.end
        yield hit


@dataclass(frozen=True, slots=True)
class _WordsPlace:
    start: int
    end: int
    words: Words
    match: re.Match[str]
    backend: str | None


def _found(text: str, begin: int, until: int, counted: CountedMessages | None) -> Iterator[_WordsPlace]:
    for find, table in BY_FIND.items():
        at = text.find(find, begin)
        while at >= 0:
            if counted is not None and counted.has_enough(find):
                counted.count(find, text, at, until)
                break
            for words in table:
                place = _place(text, at, words)
                if place is not None:
                    if counted is not None and begin <= place.start < until:
                        counted.note_read(find)
                    yield place
                    break
            at = text.find(find, at + len(find))


def _is_followed(text: str, found: list[_WordsPlace], at: int, counted: CountedMessages | None) -> bool:
    place = found[at]
    if at + 1 < len(found) and found[at + 1].start <= place.end:
        return True
    return counted is not None and counted.next_head(text, place.start + 1, place.end, with_sizes=False) < place.end


def _place(text: str, at: int, words: Words) -> _WordsPlace | None:
    if not text.endswith(words.before, 0, at):
        return None
    before = next(before for before in words.before if text.endswith(before, 0, at))
    start = at - len(before)
    if words.at_start and start and text[start - 1] not in "\r\n" and not text.endswith(EXCEPTIONS, 0, start):
        return None
    match = words.after.match(text, at)
    if match is None:
        return None
    said_by = "" if words.kind is MessageKind.KILLED else _WORD.split(before)[0].upper()
    return _WordsPlace(start, match.end(), words, match, words.backend or said_by or None)


def _hit(text: str, place: _WordsPlace, stop: int) -> Hit:
    words, named = place.words, place.match.groupdict()
    values: dict[str, Any] = {name: int(named[name]) for name in ("size", "device") if named.get(name)}
    if "size" in values:
        values["requested_bytes"] = values.pop("size")
    kind, wording, end = words.kind, words.wording, place.end
    most = _PROGRAM_LINE_CHARACTERS if words.figures else _LINE_CHARACTERS
    line = text.find("\n", end, place.start + most)
    said = _EDGE.sub(" ", text[place.start : line if line >= 0 else _last_space(text, end, place.start + most)])
    if words.figures:
        # The text on the next lines belongs to the message; the next message with the same words does not.
        again = text.find(words.find, place.end, place.start + _PROGRAM_CHARACTERS)
        until = again if again >= 0 else place.start + _PROGRAM_CHARACTERS
        read_figures(_EDGE.sub(" ", text[place.start : until]), words, values)
    if words.has_sizes:
        window = _EDGE.sub(" ", text[place.start : stop])
        length = _read_sizes(window, values)
        rest = _SENTENCE.match(window, length)
        said = window[: rest.end() if rest else length] if length else said
        # Where several spaces became one, this end is slightly too early; everything needed has been read by then.
        end = max(end, min(stop, place.start + length))
        if wording == "allocator":
            kind, wording = _which(window, values)
    return Hit(
        place.start,
        end,
        Message(
            kind=kind,
            wording=wording,
            text=said[:_QUOTED_CHARACTERS].strip(),
            is_certain=words.is_certain,
            backend=place.backend,
            **values,
        ),
    )


def _last_space(text: str, begin: int, end: int) -> int:
    if end >= len(text):
        return end
    space = text.rfind(" ", begin, end)
    return space if space >= 0 else end


def _read_sizes(window: str, values: dict[str, Any]) -> int:
    found = [(match, name) for name, pattern in SIZES.items() if (match := pattern.search(window))]
    found += [(match, "") for match in PROCESS.finditer(window)]
    others = []
    end = 0
    for match, name in sorted(found, key=lambda entry: entry[0].start()):
        if match.start() > end + _MOST_GAP_CHARACTERS:
            break
        end = max(end, match.end())
        size = bytes_of(match[match.lastindex or 0])
        if not name:
            others.append(OtherProcess(int(match[1]), size))
        elif name not in ("process_bytes", "allowed_bytes") or size < _NONSENSE_BYTES:
            values[name] = size
    if "process_bytes" not in values and (cut := _CUT_PROCESS.search(window, end)) is not None:
        end = cut.end()
    if "allocated_bytes" in values:
        allocated = values["allocated_bytes"]
        if "unallocated_bytes" in values:
            values["reserved_bytes"] = allocated + values["unallocated_bytes"]
        elif "reserved_bytes" in values:
            values["unallocated_bytes"] = max(0, values["reserved_bytes"] - allocated)
    if device := DEVICE.search(window, 0, max(end, _LINE_CHARACTERS)):
        values["device"] = int(device[1])
    values["other_processes"] = tuple(others)
    values["is_expandable"] = _EXPANDABLE_IS_ON in window or "reserve_bytes" in values
    return end


def _which(window: str, values: dict[str, Any]) -> tuple[MessageKind, str]:
    if "more than 1EB memory" in window[:120]:
        return MessageKind.BOGUS_SIZE, "more_than_1eb"
    if "preemptively rejected" in window[:120]:
        return MessageKind.LIMIT, "preempted"
    kind = MessageKind.BOGUS_SIZE if values.get("requested_bytes", 0) > BOGUS_BYTES else MessageKind.ALLOCATOR
    if "reserve_bytes" in values:
        return MessageKind.ADDRESS_SPACE, "beyond_the_reserve"
    if "custom allocator backing this MemPool" in window:
        return kind, "custom_pool"
    if "reserved in total" in window:
        return kind, "reserved_in_total"
    if "reserved by PyTorch" not in window and " cached" in window and "unallocated_bytes" in values:
        return kind, "cached"
    return kind, "of_which_free" if "total_bytes" in values else "bare"
