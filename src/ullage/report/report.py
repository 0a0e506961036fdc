"""What a report is made of: a headline and sections, as plain data.

Analysis computes, a `describe` function arranges the result into a `Report`, and a renderer draws it; text and page
come from the same object, so they cannot disagree.
"""

from dataclasses import dataclass
from enum import Enum


class Tone(Enum):
    """How a thing should feel to the reader."""

    GOOD = "good"
    BAD = "bad"
    UNSURE = "unsure"
    PLAIN = "plain"
    QUIET = "quiet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a whole, in bytes."""

    label: str
    size_bytes: int
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """What lies within the parts of a meter, and so has no place of its own in its bar."""

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """A whole and its parts, drawn as one bar; what the parts leave is free."""

    title: str
    total_bytes: int
    total_label: str
    parts: tuple[Part, ...]
    within: tuple[Within, ...] = ()
    rest_label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Parts of a whole, drawn as a bar a line, with their percentage."""

    title: str
    total_bytes: int
    parts: tuple[Part, ...]
    short: int | None = None
    """So many of the parts stand in a short report, and the others as one; None: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A level over time in bytes, with marks (positions in `values`)."""

    title: str
    values: tuple[int, ...]
    marks: tuple[int, ...]
    mark_label: str
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """Words of somebody else, shown as they are."""

    title: str
    text: str
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """Short sentences."""

    title: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row: texts, how it should feel, and how much of a whole it is, for a bar at its end (None: no bar)."""

    cells: tuple[str, ...]
    tone: Tone = Tone.PLAIN
    share: float | None = None
    is_detail: bool = False
    """Whether a short report leaves it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of texts under headings."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    instead: tuple[str, ...] = ()
    """What a short report says instead of the rows that are details, in sentences."""


Section = Meter | Shares | Curve | Quote | Remarks | Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Levels in bytes that lie on each other over time: (label, values) from below, with marks (positions)."""

    title: str
    series: tuple[tuple[str, tuple[int, ...]], ...]
    marks: tuple[int, ...]
    mark_label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Icicle:
    """A tree of bytes: each leaf with the names on the way to it, its size and a remark."""

    title: str
    levels: tuple[str, ...]
    """What the names on each level are."""
    leaves: tuple[tuple[tuple[str, ...], int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """One piece of memory: its name, its bytes, and what lies in it as (offset, bytes, label)."""

    name: str
    size_bytes: int
    blocks: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """Pieces of memory, the largest first, drawn to scale."""

    title: str
    strips: tuple[Strip, ...]
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One thing that was tried, at (x, y), and how it ended."""

    x: int
    y: int
    tone: Tone
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """What was tried, over one or two numbers, with a line of (x, y) among it and perhaps a limit in y."""

    title: str
    x_label: str
    y_label: str
    y_is_bytes: bool
    points: tuple[Point, ...]
    line: tuple[tuple[int, int], ...]
    line_label: str
    limit: int | None = None
    limit_label: str = ""


Picture = Stack | Icicle | Map | Plot


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A headline with its tone, one sentence, and sections in the order in which they are read.

    Pictures are for a page; a terminal leaves them out. It is short there, unless everything is asked for.
    """

    headline: str
    tone: Tone
    subject: str
    sentence: str
    sections: tuple[Section, ...]
    pictures: tuple[Picture, ...] = ()
    details: tuple[Section, ...] = ()
    """Sections that a short report leaves out."""
    more: str = ""
    """Where to find what a short report leaves out."""
