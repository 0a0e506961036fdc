"""Finds the places in a log where a program was started again, if one file has the output of several runs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ullage.recorded.message.traceback import without_prefix

_SHORTEST_LITERAL: Final = 6  # characters of a first line that is compared with later lines
_LONGEST_ROW: Final = 200
_MOST_STARTS: Final = 200  # a line that occurs more often is written in a loop, not at the start of a run
# Lines that servers, launchers and ComfyUI write once at their start.
_BANNERS: Final = (
    *("vLLM API server version", "** ComfyUI startup time", "server_args=ServerArgs("),
    "Setting OMP_NUM_THREADS environment variable for each process",
)
_SHELL: Final = re.compile(
    r"(?:\$|[^\n$#%>]{0,60}[@:~/][^\n$#%>]{0,60}[$#%]) (?:[A-Z_]{2,40}=\S{1,80} ){0,6}(?:nohup |sudo |time )?"
    r"(?:python3?(?: -[uOB]+)? (?:-m \S|-c \S|\S{1,200}\.py\b)|torchrun \S|accelerate launch|vllm serve)"
)
_COMMANDS: Final = ("$ python", "# python", "% python", "$ torchrun", "# torchrun", "$ accelerate", "$ vllm")
_NO_START: Final = re.compile(
    r"Traceback|[Ee]rror|[Kk]illed|OOM|[Ww]arning|WARN|memory|Memory|\bFile \"|\d%\||it/s|[Ee]poch|[Ss]tep|[Ll]oss"
    r"|^\s|^[\W\d]*$"
)
_LARGEST_COUNT: Final = 100  # lines of a loop count on by less; process IDs, dates and seeds differ by more
_DIGITS: Final = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class RunStart:
    """The start of a further run in a log."""

    row: int
    """The line number in the log, counted from 1."""
    is_like_the_first: bool = False
    """Whether the line was recognized because it is like the first line of the log."""


class RunStarts:
    """Searches a log, piece by piece, for the lines at which a run begins.

    A run begins at a line that is equal to the first line of the log, apart from its numbers, at a shell prompt with
    a Python command, or at a line that a known program writes once at its start.
    """

    def __init__(self) -> None:
        self._first: re.Pattern[str] | None = None
        self._literal = ""
        self._numbers: list[int] = []
        self._second = ""
        self._is_read = False
        self._found = 0

    def starts_in(self, text: str, begin: int, until: int) -> Iterator[tuple[int, bool]]:
        """Yield the positions of the lines between two positions of the text at which a run begins, in order.

        The second value is whether the line was recognized because it is like the first one.
        """
        if not self._is_read:
            self._read_first(text)
        places = {
            self._line_start(text, at) for mark in (*_BANNERS, *_COMMANDS) for at in _all(text, mark, begin, until)
        }
        places = {at for at in places if self._is_start(text, at)}
        alike = set()
        if self._first is not None and self._found < _MOST_STARTS:
            for at in _all(text, self._literal, begin, until):
                start = self._line_start(text, at)
                end = text.find("\n", start, start + _LONGEST_ROW + 1)
                row = text[start : end if end >= 0 else start + _LONGEST_ROW]
                is_alike = self._first.fullmatch(row.rstrip("\r")) is not None and not self._is_counter(row)
                if is_alike and self._is_second(text, end):
                    alike.add(start)
                    self._found += 1
        yield from sorted((place, place in alike) for place in places | alike if place >= begin)

    def _read_first(self, text: str) -> None:
        self._is_read = True
        rows = [row.rstrip("\r") for row in text[: _LONGEST_ROW * 3].lstrip("\r\n").split("\n") if row.strip()]
        if len(rows) < 3 or _NO_START.search(rows[1]) is not None:
            return
        row = rows[0]
        self._second = _DIGITS.sub("#", rows[1])
        parts = [part for part in _DIGITS.split(row) if part.strip()]
        self._literal = max(parts, key=len, default="").strip()
        if len(self._literal) < _SHORTEST_LITERAL or len(row) > _LONGEST_ROW or _NO_START.search(row) is not None:
            return
        # Another rank's first line differs only in the rank's number, and is not the start of another run.
        pieces = [row] if without_prefix(row)[0] is not None else _DIGITS.split(row)
        self._numbers = [int(number[:18]) for number in _DIGITS.findall(row)]
        self._first = re.compile("[0-9]+".join(re.escape(part) for part in pieces))

    def _is_second(self, text: str, end: int) -> bool:
        """Return whether the line after a position is like the second line of the log."""
        following = text[end + 1 : end + 1 + _LONGEST_ROW].lstrip("\r\n").split("\n", 1)[0] if end >= 0 else ""
        return self._second == _DIGITS.sub("#", following.rstrip("\r"))

    def _is_counter(self, row: str) -> bool:
        """Return whether a line differs from the first one only in a number that has counted on a little."""
        numbers = [int(number[:18]) for number in _DIGITS.findall(row)]
        more = [now - before for now, before in zip(numbers, self._numbers, strict=False)]
        return any(0 < difference <= _LARGEST_COUNT for difference in more) and all(each >= 0 for each in more)

    @staticmethod
    def _line_start(text: str, at: int) -> int:
        return text.rfind("\n", max(0, at - _LONGEST_ROW), at) + 1

    @staticmethod
    def _is_start(text: str, at: int) -> bool:
        end = text.find("\n", at, at + 2 * _LONGEST_ROW)
        row = text[at : end if end >= 0 else at + 2 * _LONGEST_ROW]
        return _SHELL.match(row) is not None or any(banner in row for banner in _BANNERS)


def _all(text: str, mark: str, begin: int, until: int) -> Iterator[int]:
    at = text.find(mark, begin, until)
    for _ in range(_MOST_STARTS):
        if at < 0:
            break
        yield at
        at = text.find(mark, at + 1, until)
