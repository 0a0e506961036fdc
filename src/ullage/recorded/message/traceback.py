"""The stack frames of the traceback above an error message, in the forms that Python, IPython, Colab and Kaggle print.

The lines may carry the prefixes of a log: a rank, a worker, a time, a container's or a unit's name.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ullage.base.source_location import is_library, short_place

_MOST_ROWS: Final = 2000  # the most lines of a traceback that are read, including lines of other ranks in between
_MOST_ROWS_APART: Final = 16  # the most lines between two frames of one traceback, as IPython shows them
_MOST_ROWS_TO_TRACEBACK: Final = 4  # the most lines between a message and a traceback below it, plus one
_LONGEST_ROW: Final = 2000  # characters of a line; a longer line does not belong to a traceback
_PREFIX: Final = re.compile(
    r"(?:\s{0,8}(?:"
    r"[\w.-]{1,60} {1,4}\| ?"  # docker compose
    r"|\[\d{4}-\d\d-\d\d [\d:]{8} (?P<part>(?:[DPTE]P\d{1,4} ?){1,4})\]"  # SGLang
    r"|\[?\d{4}-\d\d-\d\d[T ,]{1,2}\d\d:\d\d:\d\d[\d:.,]{0,12}(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?\]?(?: - | |$)"  # a time
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,60} [\w./@-]{1,60}(?:\[\d{1,9}\])?: "  # journald, syslog
    r"|\{[\w./]{1,60}:\d{1,6}\} (?:DEBUG|INFO|WARNING|ERROR) - "  # airflow
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?: \d\d-\d\d [\d:]{8})? (?:\[[\w./]{1,60}:\d{1,6}\] ?)?(?:- )?"  # vLLM
    r"|\[(?P<rank>(?:rank|default)\d{1,6})\]:?"  # torchrun
    r"|\((?P<worker>\w[^()\n]{0,60}\bpid=\d{1,9})[^()\n]{0,60}\)"  # Ray, vLLM
    r"|(?P<task>\d{1,5}): "  # srun -l
    r")){1,4}"
)
_PYTHON: Final = re.compile(
    r'\bFile "(?P<file>[^"\n]{1,400})", line (?P<line>\d{1,7})(?:, in (?P<function>[^\n]{1,200}))?'
)
_IPYTHON_8: Final = re.compile(r"\bFile (?P<file>\S{1,400}?):(?P<line>\d{1,7}), in (?P<function>[^\n(]{1,200})")
_CELL: Final = re.compile(r"\b(?P<file>Cell In ?\[\d{1,6}\]), line (?P<line>\d{1,7})\b")
_IPYTHON_7: Final = re.compile(
    r"^(?P<file>(?:/|~/|[A-Za-z]:\\|<ipython-input-)[^\n]{1,400}?) in (?P<function><?[\w. ]{1,200}(?:: ?\w{1,20})?>?)\("
)
_ARROW: Final = re.compile(r"-{1,12}> ?(?P<line>\d{1,7}) ?(?P<statement>.*)")  # IPython's mark of the current line
_NUMBERED: Final = re.compile(r"\s*\d{1,7}\s")  # IPython's lines next to the current one
TRACEBACK: Final = "Traceback (most recent call last)"
"""The line with which Python begins a traceback."""
_BORDERS: Final = (
    TRACEBACK,
    "During handling of the above exception",
    "was the direct cause of the following exception",
)
_CELL_FILE: Final = re.compile(r"<ipython-input-(?P<number>\d{1,6})-|[\\/]ipykernel_\d{1,9}[\\/]\d{1,12}\.py$")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFrame:
    """One stack frame of a traceback in a text."""

    file: str
    line: int
    """The line number in the file or notebook cell; 0 if the text does not contain it."""
    function: str | None = None
    statement: str | None = None
    """The source text of the line, without its indentation."""
    around: str = ""
    """The source lines next to the statement, which IPython prints."""

    @property
    def is_library(self) -> bool:
        """Whether the frame belongs to a library, not to the user's own code."""
        return not self.file.startswith("Cell In") and is_library(self.file)

    @property
    def place(self) -> str:
        """The place as people read it: "project/train.py:12", or "Cell In[5], line 14" for a notebook."""
        if self.cell is not None:
            return f"{self.cell}, line {self.line}" if self.line else self.cell
        return short_place(self.file, self.line)

    @property
    def cell(self) -> str | None:
        """The notebook cell of the frame, such as "Cell In[5]" or "a notebook cell"; None for a file."""
        if self.file.startswith("Cell In"):
            return self.file
        match = _CELL_FILE.search(self.file)
        if match is None:
            return None
        return f"Cell In[{match['number']}]" if match["number"] else "a notebook cell"


def without_prefix(row: str) -> tuple[str | None, str]:
    """Return the rank or worker that a log line's prefix names (None without one), and the line without its prefix."""
    match = _PREFIX.match(row)
    if match is None:
        return None, row
    task = f"task {match['task']}" if match["task"] else None
    return match["rank"] or match["worker"] or match["part"] or task, row[match.end() :]


def frames_above(text: str, floor: int, begin: int, rank: str | None) -> Iterator[TextFrame]:
    """Yield the stack frames of the traceback that ends at a position of a text, the innermost frame first.

    Args:
        text: the log.
        floor: the position before which the traceback cannot begin: the end of the previous message.
        begin: the position of the line that holds the error message.
        rank: the rank that wrote the message; lines with another rank's prefix are skipped.
    """
    below: list[str] = []  # the lines between this one and the next frame, the lowest first
    apart, end = 0, begin - 1
    for _ in range(_MOST_ROWS):
        if end < 0:
            break
        at = text.rfind("\n", max(floor, end - _LONGEST_ROW), end) + 1
        if apart > _MOST_ROWS_APART or (at <= floor and (end - floor > _LONGEST_ROW or floor > 0)):
            break
        owner, row = without_prefix(text[at:end])
        if owner == rank:
            if any(words in row for words in _BORDERS):
                break
            frame = _frame(row, below)
            if frame is not None:
                yield frame
                below, apart = [], 0
            else:
                below.append(row)
                apart += 1
        if at == 0:
            break
        end = at - 1


def frames_below(text: str, begin: int, end: int, rank: str | None) -> Iterator[TextFrame]:
    """Yield the stack frames of a traceback that begins directly below an error message, the innermost frame first.

    Args:
        text: the log.
        begin: the position after an error message.
        end: the position at which the traceback is cut.
        rank: the rank that wrote the message; lines with another rank's prefix are skipped.
    """
    head = text.find(TRACEBACK, begin, end)
    if head < 0 or text.count("\n", begin, head) > _MOST_ROWS_TO_TRACEBACK:
        return
    at = last = text.find("\n", head, end) + 1
    while 0 < at < end:
        stop = text.find("\n", at, end)
        stop = stop if stop >= 0 else end
        owner, row = without_prefix(text[at:stop])
        if owner == rank and row and not row.startswith((" ", "\t")):
            break  # the line of the error that ends the traceback
        at = last = stop + 1
    if last > 0:
        yield from frames_above(text[:last], head, last, rank)


# `row` has no prefix, such as a rank or a time. `below` begins with the last line before the next frame.
def _frame(row: str, below: list[str]) -> TextFrame | None:
    if "File " not in row and "Cell In" not in row and " in " not in row:
        return None
    match = _PYTHON.search(row)
    if match is not None:
        statement = below[-1].strip() if below else ""
        is_source = statement and not statement.startswith(("^", "~", "[Previous line repeated"))
        return TextFrame(
            file=match["file"],
            line=int(match["line"]),
            function=(match["function"] or "").strip() or None,
            statement=statement if is_source else None,
        )
    match = _IPYTHON_8.search(row) or _CELL.search(row) or _IPYTHON_7.match(row.strip())
    if match is None:
        return None
    named = match.groupdict()
    arrow = next((found for each in reversed(below) if (found := _ARROW.match(each.strip()))), None)
    line = int(named.get("line") or (arrow["line"] if arrow is not None else 0))
    function = (named.get("function") or "").strip() or None
    return TextFrame(
        file=match["file"],
        line=line,
        function=function,
        statement=(arrow["statement"].strip() or None) if arrow is not None else None,
        around="\n".join(reversed([each for each in below if _NUMBERED.match(each)])),
    )
