"""Counts the out-of-memory messages in a text. The first 1000 of each form are parsed; the rest are only counted.

The beginnings of messages ("heads") are found with one pattern each, which is fast, because a log may repeat a message
a million times.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from ullage.recorded.message import program_wording, wording
from ullage.recorded.message.wording import MessageKind, Words

TABLE: Final = (*program_wording.TABLE, *wording.TABLE)
"""All known texts of out-of-memory messages. Those of other programs come before those of PyTorch, because the first
match is used.
"""
BY_FIND: Final[dict[str, tuple[Words, ...]]] = {
    find: tuple(words for words in TABLE if words.find == find) for find in dict.fromkeys(words.find for words in TABLE)
}


MOST_READ: Final = 1000
"""The largest number of similar out-of-memory messages that are parsed. Further ones are only counted."""
EXCEPTIONS: Final = ("Error: ", "error: ", "Exception: ")


@dataclass(frozen=True, slots=True)
class Unread:
    """The number of out-of-memory messages that were counted but not parsed. It is a lower bound."""

    failures: int
    warnings: int


@dataclass(slots=True)
class CountedMessages:
    """Counts the parsed and the unparsed out-of-memory messages, separately for each kind of message."""

    read: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)

    def has_enough(self, find: str) -> bool:
        """Return whether ullage has parsed enough messages with the text `find`, and only counts further ones."""
        return self.read.get(find, 0) >= MOST_READ

    def note_read(self, find: str) -> None:
        """Count one more parsed message with the text `find`."""
        self.read[find] = self.read.get(find, 0) + 1

    def count(self, find: str, text: str, begin: int, until: int) -> None:
        """Count the out-of-memory messages that begin in a part of a text."""
        pattern = _head(find)
        number = len(pattern.findall(text, begin)) - len(pattern.findall(text, until))
        self.counted[find] = self.counted.get(find, 0) + max(0, number)

    def next_head(self, text: str, begin: int, end: int, *, with_sizes: bool) -> int:
        """Return the position of the next message that is only counted, not parsed. Return `end` if there is none."""
        for find in self.read:
            if self.has_enough(find) and (not with_sizes or any(words.has_sizes for words in BY_FIND[find])):
                match = _head(find).search(text, begin, end)
                end = match.start() if match is not None else end
        return end

    def rest(self) -> Unread:
        """Return the number of messages that ullage counted but did not parse. The text may contain more of them."""
        numbers: dict[bool, int] = {True: 0, False: 0}
        for find, number in self.counted.items():
            is_warning = BY_FIND[find][0].kind is MessageKind.WARNING
            numbers[is_warning] = max(numbers[is_warning], number)
        return Unread(failures=numbers[False], warnings=numbers[True])


# The pattern starts with literal text, which makes the search fast.
@cache
def _head(find: str) -> re.Pattern[str]:
    rules = []
    for words in BY_FIND[find]:
        edges = (r"\A", r"\r", r"\n", *map(re.escape, EXCEPTIONS)) if words.at_start else ("",)
        befores = [(edge, before) for before in words.before for edge in edges]
        # If one of them is empty, any text may come before the words.
        if ("", "") in befores:
            befores = []
        behind = "|".join(f"(?<={edge}{re.escape(before + find)})" for edge, before in befores)
        rules.append((f"(?:{behind})" if behind else "") + _after(words))
    return re.compile(re.escape(find) + f"(?:{'|'.join(rules)})", re.ASCII)


# The pattern has no group names, because these must be unique within one pattern.
def _after(words: Words) -> str:
    return re.sub(r"\(\?P<\w+>", "(?:", words.after.pattern[len(re.escape(words.find)) :])
