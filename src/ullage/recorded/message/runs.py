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
    *("vLLM API server version", "Started server process [", "** ComfyUI startup time", "server_args=ServerArgs("),
    *("Setting OMP_NUM_THREADS environment variable for each process", "***** Running training *****"),
)
_SHELL: Final = re.compile(
    r"[^\n$#%>]{0,80}[$#%>] (?:[A-Z_]{2,40}=\S{1,80} ){0,6}(?:nohup |sudo |time )?"
    r"(?:python3?|torchrun|accelerate|deepspeed|vllm|bash|sh|uv|srun|sbatch)\b"
)
_COMMANDS: Final = (
    "$ python",
    "# python",
    "% python",
    "> python",
    "$ torchrun",
    "# torchrun",
    "$ accelerate",
    "$ vllm",
)
_NO_START: Final = re.compile(
    r"Traceback|[Ee]rror|[Kk]illed|OOM|[Ww]arning|WARN|memory|Memory|\bFile \"|\d+%\||it/s|[Ee]poch|[Ss]tep|[Ll]oss"
    r"|^\s|^[\W\d]*$"
)
_DIGITS: Final = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class RunStart:
    """The start of a further run in a log."""

    row: int
    """The line number in the log, counted from 1."""


class RunStarts:
    """Searches a log, piece by piece, for the lines at which a run begins.

    A run begins at a line that is equal to the first line of the log, apart from its numbers, at a shell prompt with
    a Python command, or at a line that a known program writes once at its start.
    """

    def __init__(self) -> None:
        self._first: re.Pattern[str] | None = None
        self._literal = ""
        self._is_read = False
        self._found = 0

    def starts_in(self, text: str, begin: int, until: int) -> Iterator[int]:
        """Yield the positions of the lines between two positions of the text at which a run begins, in order."""
        if not self._is_read:
            self._read_first(text)
        places = {
            self._line_start(text, at) for mark in (*_BANNERS, *_COMMANDS) for at in _all(text, mark, begin, until)
        }
        places = {at for at in places if self._is_start(text, at)}
        if self._first is not None and self._found < _MOST_STARTS:
            for at in _all(text, self._literal, begin, until):
                start = self._line_start(text, at)
                end = text.find("\n", start, start + _LONGEST_ROW + 1)
                row = text[start : end if end >= 0 else start + _LONGEST_ROW]
                if self._first.fullmatch(row.rstrip("\r")) is not None:
                    places.add(start)
                    self._found += 1
        yield from sorted(place for place in places if place >= begin)

    def _read_first(self, text: str) -> None:
        self._is_read = True
        row = text[: _LONGEST_ROW * 2].lstrip("\r\n").split("\n", 1)[0].rstrip("\r")
        parts = [part for part in _DIGITS.split(row) if part.strip()]
        self._literal = max(parts, key=len, default="").strip()
        if len(self._literal) < _SHORTEST_LITERAL or len(row) > _LONGEST_ROW or _NO_START.search(row) is not None:
            return
        # Another rank's first line differs only in the rank's number, and is not the start of another run.
        pieces = [row] if without_prefix(row)[0] is not None else _DIGITS.split(row)
        self._first = re.compile("[0-9]+".join(re.escape(part) for part in pieces))

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
