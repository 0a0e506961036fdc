"""How often each message begins in a text: the first thousand of a kind are read, and the rest are only counted.

Beginnings ("heads") are found with one pattern each, which is fast: a log may repeat a message a million times.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from ullage.recorded.message import program_wording, wording
from ullage.recorded.message.wording import MessageKind, Words

TABLE: Final = (*program_wording.TABLE, *wording.TABLE)
"""All wordings. The first that fits counts where two begin with the same words, so a program's own go before."""
BY_FIND: Final[dict[str, tuple[Words, ...]]] = {
    find: tuple(words for words in TABLE if words.find == find) for find in dict.fromkeys(words.find for words in TABLE)
}


MOST_READ: Final = 1000
"""Number of messages with the same beginning that are read; further ones cannot change the verdict."""
EXCEPTIONS: Final = ("Error: ", "error: ", "Exception: ")


@dataclass(frozen=True, slots=True)
class Unread:
    """The least number of messages in a text, so far, that were counted and not read."""

    failures: int
    warnings: int


@dataclass(slots=True)
class CountedMessages:
    """Number of places that were read and number that were only counted, by `Words.find`."""

    read: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)

    def has_enough(self, find: str) -> bool:
        """Return whether enough messages with this head were read."""
        return self.read.get(find, 0) >= MOST_READ

    def note_read(self, find: str) -> None:
        """Note that one more message with this head is read."""
        self.read[find] = self.read.get(find, 0) + 1

    def count(self, find: str, text: str, begin: int, until: int) -> None:
        """Count the heads that begin in a part of a text; the text behind the part is looked at, but not counted."""
        pattern = _head(find)
        number = len(pattern.findall(text, begin)) - len(pattern.findall(text, until))
        self.counted[find] = self.counted.get(find, 0) + max(0, number)

    def next_head(self, text: str, begin: int, end: int, *, with_sizes: bool) -> int:
        """Return where the first head begins that is only counted; `end` if none begins before it."""
        for find in self.read:
            if self.has_enough(find) and (not with_sizes or any(words.has_sizes for words in BY_FIND[find])):
                match = _head(find).search(text, begin, end)
                end = match.start() if match is not None else end
        return end

    def rest(self) -> Unread:
        """Return the messages that were only counted: a lower bound, since one message may have two heads."""
        numbers: dict[bool, int] = {True: 0, False: 0}
        for find, number in self.counted.items():
            is_warning = BY_FIND[find][0].kind is MessageKind.WARNING
            numbers[is_warning] = max(numbers[is_warning], number)
        return Unread(failures=numbers[False], warnings=numbers[True])


@cache
def _head(find: str) -> re.Pattern[str]:
    """Return one pattern for `find` and what must stand around it. It begins with `find`, so a search is fast."""
    rules = []
    for words in BY_FIND[find]:
        edges = (r"\A", r"\r", r"\n", *map(re.escape, EXCEPTIONS)) if words.at_start else ("",)
        befores = [(edge, before) for before in words.before for edge in edges]
        # Where one of them is empty, anything may stand before the words.
        if ("", "") in befores:
            befores = []
        behind = "|".join(f"(?<={edge}{re.escape(before + find)})" for edge, before in befores)
        rules.append((f"(?:{behind})" if behind else "") + _after(words))
    return re.compile(re.escape(find) + f"(?:{'|'.join(rules)})", re.ASCII)


def _after(words: Words) -> str:
    """Return the pattern behind `find` without group names, which must be unique within one pattern."""
    return re.sub(r"\(\?P<\w+>", "(?:", words.after.pattern[len(re.escape(words.find)) :])
