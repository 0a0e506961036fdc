"""How often each head of a message stood in a text: the first of them are read, and the rest only counted.

It finds heads with one pattern each, which is quick, and reads nothing: a log may say the same a million times.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from ullage.message.wording import BY_FIND, Kind, Words

MANY: Final = 1000
"""So many of one head are read, whatever the text; the others cannot change what it is about."""
EXCEPTIONS: Final = ("Error: ", "error: ", "Exception: ")


@dataclass(frozen=True, slots=True)
class Rest:
    """At least so many messages stood in a text so far that nobody read."""

    failures: int
    warnings: int


@dataclass(slots=True)
class Tally:
    """By `Words.find`: how many places were looked at, and how many were only counted."""

    looked: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)

    def is_full(self, find: str) -> bool:
        """Whether enough of these were looked at."""
        return self.looked.get(find, 0) >= MANY

    def look(self, find: str) -> None:
        """Note that one more was looked at."""
        self.looked[find] = self.looked.get(find, 0) + 1

    def count(self, find: str, text: str, begin: int, until: int) -> None:
        """Count the heads that begin in a part of a text; what follows the part is seen, not counted."""
        pattern = _head(find)
        number = len(pattern.findall(text, begin)) - len(pattern.findall(text, until))
        self.counted[find] = self.counted.get(find, 0) + max(0, number)

    def next_head(self, text: str, begin: int, end: int, *, with_sizes: bool) -> int:
        """Return where the first head that is only counted begins; `end` if none does before it."""
        for find in self.looked:
            if self.is_full(find) and (not with_sizes or any(words.has_sizes for words in BY_FIND[find])):
                match = _head(find).search(text, begin, end)
                end = match.start() if match is not None else end
        return end

    def rest(self) -> Rest:
        """Return what was only counted. One message may have two heads, so the most frequent one is the least."""
        numbers: dict[bool, int] = {True: 0, False: 0}
        for find, number in self.counted.items():
            is_warning = BY_FIND[find][0].kind is Kind.WARNING
            numbers[is_warning] = max(numbers[is_warning], number)
        return Rest(failures=numbers[False], warnings=numbers[True])


@cache
def _head(find: str) -> re.Pattern[str]:
    """What `Words` ask for around `find`, as one pattern that begins with it: a plain search leads to it."""
    rules = []
    for words in BY_FIND[find]:
        edges = (r"\A", r"\r", r"\n", *map(re.escape, EXCEPTIONS)) if words.at_start else ("",)
        behind = "|".join(
            f"(?<={edge}{re.escape(before + find)})" for before in words.before for edge in edges if edge + before
        )
        rules.append((f"(?:{behind})" if behind else "") + _after(words))
    return re.compile(re.escape(find) + f"(?:{'|'.join(rules)})", re.ASCII)


def _after(words: Words) -> str:
    """What follows `find`, without names: two rules of one pattern may not have the same."""
    return re.sub(r"\(\?P<\w+>", "(?:", words.after.pattern[len(re.escape(words.find)) :])
