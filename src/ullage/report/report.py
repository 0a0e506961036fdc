"""The content of a report: a headline and sections, as plain data.

Analysis computes, a `describe` function arranges the result into a `Report`, and a renderer draws it; text and page
come from the same object, so they cannot disagree.
"""

from dataclasses import dataclass
from enum import Enum

from ullage.base.errors import ExitCode
from ullage.report.blocks import BlockHistory


class Tone(Enum):
    """The tone of a text: good, bad, unsure or neutral."""

    GOOD = "good"
    BAD = "bad"
    UNSURE = "unsure"
    PLAIN = "plain"
    QUIET = "quiet"

    @classmethod
    def of_exit_code(cls, code: ExitCode) -> "Tone":
        """Return the tone of an answer that ends its command with a code."""
        return {ExitCode.YES: cls.GOOD, ExitCode.UNKNOWN: cls.UNSURE}.get(code, cls.BAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedPart:
    """One part of a whole, in bytes."""

    label: str
    size_bytes: int
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """A figure that lies within the parts of a meter, and so has no place of its own in the bar."""

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """A whole and its parts, drawn as one bar; the rest is free."""

    title: str
    total_bytes: int
    total_label: str
    parts: tuple[SizedPart, ...]
    within: tuple[Within, ...] = ()
    rest_label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Parts of a whole with their percentages, one bar for each."""

    title: str
    total_bytes: int
    parts: tuple[SizedPart, ...]
    short: int | None = None
    """Number of parts that a short report shows singly, with the rest as one; None: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A stretch of a time axis that has a name, from its first to its last position."""

    label: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A level over time in bytes, with marks and bands (positions in `values`); a later band covers an earlier."""

    title: str
    values: tuple[int, ...]
    marks: tuple[int, ...]
    mark_label: str
    remark: str = ""
    bands: tuple[Band, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A text quoted from elsewhere, shown unchanged."""

    title: str
    text: str
    place: str = ""
    is_to_paste: bool = False
    """Whether lines are to be pasted somewhere: nothing stands before them, and none is wrapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """Short sentences."""

    title: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A row: texts, their tone, and the share of a whole that a bar at its end shows (None: no bar)."""

    cells: tuple[str, ...]
    tone: Tone = Tone.PLAIN
    share: float | None = None
    is_detail: bool = False
    """Whether a short report leaves the row out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of texts with column headings."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    instead: tuple[str, ...] = ()
    """Sentences that a short report shows instead of the rows that are details."""
    wraps: bool = False
    """Whether short texts may take several lines too, before a narrow terminal gets the rows as a list."""


Section = Meter | Shares | Curve | Quote | Remarks | Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Layers in bytes over time: (label, values) from the bottom up, with marks (positions)."""

    title: str
    series: tuple[tuple[str, tuple[int, ...]], ...]
    marks: tuple[int, ...]
    mark_label: str
    bands: tuple[Band, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Icicle:
    """A tree of bytes: each leaf with the names of its levels, its size and a remark."""

    title: str
    levels: tuple[str, ...]
    """Names of the levels, from the outermost in."""
    leaves: tuple[tuple[tuple[str, ...], int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A piece of memory: its name, its bytes, and its content as (offset, bytes, label)."""

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
    """One trial at (x, y), and its outcome."""

    x: int
    y: int
    tone: Tone
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Trials over one or two numbers, with a line through (x, y) and optionally a limit in y."""

    title: str
    x_label: str
    y_label: str
    y_is_bytes: bool
    points: tuple[Point, ...]
    line: tuple[tuple[int, int], ...]
    line_label: str
    limit: int | None = None
    limit_label: str = ""
    outcomes: tuple[str, str, str] = ("fits", "may not fit, or not with the margin", "does not fit")
    """The names of good, unsure and bad points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A named size, and how it stands beside the limit."""

    label: str
    size_bytes: int
    tone: Tone
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Sizes one below the other, each with its name beside it, and one limit drawn through all of them."""

    title: str
    bars: tuple[Bar, ...]
    limit_bytes: int
    limit_label: str


Picture = Stack | Icicle | Map | Plot | Bars | BlockHistory


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
    """A hint where to find what a short report leaves out."""
