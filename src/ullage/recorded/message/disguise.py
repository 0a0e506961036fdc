"""Other readings of a short log: each process alone without the prefixes of its lines, and with wrapped lines joined.

A launcher mixes the lines of several processes and puts names and times before them; a terminal cuts long lines. A
message of several lines can be read only if both are undone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ullage.recorded.message.traceback import without_prefix

LONGEST_TEXT: Final = 1 << 18
"""The longest text, in characters, that is read in several ways. A longer text is read once."""
_NARROWEST, _WIDEST = 40, 400  # the fewest and the most columns of a terminal
_FEWEST_CUT: Final = 2  # rows of the full width that show that a terminal has cut lines
_MOST_OWNERS: Final = 64
_ASKED: Final = re.compile(r"tried to allocate \d[\d.]* ?[kmg]ib(?:\.| \((?:gpu|npu))", re.ASCII | re.IGNORECASE)
"""Pattern for the part of PyTorch's message with the request."""
_WORDS: Final = ("CUDA out of memory", "Tried to allocate", "GPU", "PyTorch")
_FRAMED: Final = ("|", "+", "│", "┃", "╭", "╰", "─", "=", "-", "┌", "└", "#")


@dataclass(frozen=True, slots=True)
class Reading:
    """A text that was made from some lines of a log."""

    text: str
    rows: tuple[int, ...]
    """The line number in the log, counted from 1, of each line of the text."""
    rank: str | None = None
    """The rank or worker that wrote the lines, if the log names it."""


def readings_of(text: str) -> Iterator[tuple[Reading, ...]]:
    """Yield other readings of a short log. A reading has one text for each process that wrote lines.

    The text itself is not among them.
    """
    rows = [(number, row.rstrip("\r")) for number, row in enumerate(text.split("\n"), 1)]
    if _ASKED.search(text) is not None and "CUDA out of memory" not in text and "HIP out of memory" not in text:
        yield (_reading(None, [(number, _restored(row)) for number, row in rows]),)
    joined = _joined(rows)
    if joined is not None:
        yield (_reading(None, joined),)
    for lines in (rows, joined):
        if lines is not None and (streams := _streams(lines)) is not None:
            yield tuple(_reading(owner, each) for owner, each in streams.items())
            yield tuple(_reading(owner, _joined(each) or each) for owner, each in streams.items())


def _restored(row: str) -> str:
    """Return a line with the words of PyTorch's message in their usual case, and with its first words.

    People retype messages in lower case, and copy them without their beginning.
    """
    for words in _WORDS:
        row = re.sub(rf"(?<![\w.]){re.escape(words)}(?!\w)", words, row, flags=re.IGNORECASE)
    row = re.sub(r"(?<=\d )([kmg])ib\b", lambda unit: f"{unit[1].upper()}iB", row, flags=re.IGNORECASE)
    return (
        row if "out of memory" in row else row.replace("Tried to allocate", "CUDA out of memory. Tried to allocate", 1)
    )


def _reading(owner: str | None, rows: list[tuple[int, str]]) -> Reading:
    return Reading("\n".join(row for _, row in rows), tuple(number for number, _ in rows), owner)


def _streams(rows: list[tuple[int, str]]) -> dict[str | None, list[tuple[int, str]]] | None:
    """Return the lines of each process without their prefixes, or None if the lines have no prefixes."""
    owners: dict[str | None, list[tuple[int, str]]] = {}
    prefixed = 0
    last: str | None = None
    for number, row in rows:
        owner, rest = without_prefix(row)
        prefixed += rest != row
        rest = rest.removeprefix(" ") if rest != row else row
        owners.setdefault(owner, []).append((number, rest))
        if owner is None and last is not None:  # perhaps the rest of the line above
            owners[last].append((number, rest))
        last = owner if owner is not None else last
    if not prefixed or len(owners) > _MOST_OWNERS:
        return None
    return owners


def _joined(rows: list[tuple[int, str]]) -> list[tuple[int, str]] | None:
    """Return the rows with cut lines joined, or None if no terminal has cut them.

    A line is cut if it is as long as the longest one, and if several are.
    """
    width = max((len(row) for _, row in rows), default=0)
    full = [row for _, row in rows[:-1] if len(row) == width and not row.endswith(_FRAMED)]
    # A single cut line is enough if the text has hardly any other.
    is_cut = len(full) >= _FEWEST_CUT or (full and len(rows) <= 2 * _FEWEST_CUT)
    if not is_cut or not _NARROWEST <= width <= _WIDEST:
        return None
    found: list[tuple[int, str]] = []
    is_open = False
    for number, row in rows:
        if is_open and not row.startswith(_FRAMED) and without_prefix(row)[1] == row:
            before, start = found[-1]
            found[-1] = (before, start + row)
        else:
            found.append((number, row))
        is_open = len(row) == width and not row.endswith(_FRAMED)
    return found
