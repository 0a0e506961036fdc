"""The content of a report as plain data: a headline and sections.

An analysis computes a result, a function `describe` makes a `Report` of it, and a renderer draws the report. The
terminal's text and the HTML page come from the same object. So they cannot contradict each other.
"""

from dataclasses import dataclass
from enum import Enum

from ullage.base.errors import ExitCode
from ullage.report.blocks import BlockHistory


class Tone(Enum):
    """The tone of a text, which decides its colour: good, bad, unsure, or neutral."""

    GOOD = "good"
    BAD = "bad"
    UNSURE = "unsure"
    PLAIN = "plain"
    QUIET = "quiet"

    @classmethod
    def of_exit_code(cls, code: ExitCode) -> "Tone":
        """Return the tone of a report for the exit code of its command."""
        return {ExitCode.YES: cls.GOOD, ExitCode.UNKNOWN: cls.UNSURE}.get(code, cls.BAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedPart:
    """A part of a total, in bytes."""

    label: str
    size_bytes: int
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """A figure that is already included in the parts of a stacked bar. The legend lists it, but the bar has no segment
    for it.
    """

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """A total and its parts in bytes, drawn as one stacked bar. The rest of the total is free memory."""

    title: str
    total_bytes: int
    total_label: str
    parts: tuple[SizedPart, ...]
    within: tuple[Within, ...] = ()
    rest_label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The parts of a total in bytes, each shown with its percentage and a bar."""

    title: str
    total_bytes: int
    parts: tuple[SizedPart, ...]
    short: int | None = None
    """The number of parts that a short report lists one by one. It adds up the remaining parts. None: the report lists
    all parts.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A named interval on a chart's time axis, given by its first and its last position."""

    label: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A memory level over time in bytes. Its marks and its bands (named intervals) are given as indices in `values`.

    Where bands overlap, only the later one is drawn.
    """

    title: str
    values: tuple[int, ...]
    marks: tuple[int, ...]
    mark_label: str
    remark: str = ""
    bands: tuple[Band, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A quoted text. The report shows it unchanged."""

    title: str
    text: str
    place: str = ""
    is_to_paste: bool = False
    """Whether users are meant to copy and paste the text. If so, its lines are neither indented nor wrapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """A list of short sentences under a title."""

    title: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A table row: its texts, its tone, and the fraction that a bar at the end of the row shows. None: no bar."""

    cells: tuple[str, ...]
    tone: Tone = Tone.PLAIN
    share: float | None = None
    is_detail: bool = False
    """Whether a short report leaves the row out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table: column headings and rows of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    instead: tuple[str, ...] = ()
    """Sentences that a short report shows in place of the rows that it leaves out."""
    wraps: bool = False
    """Whether short texts may wrap on a narrow terminal. If the table is too wide even then, its rows are shown as a
    list.
    """


Section = Meter | Shares | Curve | Quote | Remarks | Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A stacked area chart over time in bytes. Its areas are (label, values) pairs from the bottom up. Its marks are
    indices in `values`.
    """

    title: str
    series: tuple[tuple[str, tuple[int, ...]], ...]
    marks: tuple[int, ...]
    mark_label: str
    bands: tuple[Band, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Icicle:
    """A tree of byte counts. For each leaf, it has the names on the path to the leaf, the size in bytes and a
    remark.
    """

    title: str
    levels: tuple[str, ...]
    """The names of the tree's levels, such as "role", from the outermost to the innermost."""
    leaves: tuple[tuple[tuple[str, ...], int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A segment of memory: its name, its size in bytes, and its blocks as (offset, bytes, label)."""

    name: str
    size_bytes: int
    blocks: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """A drawing of memory segments to scale. The largest segment comes first."""

    title: str
    strips: tuple[Strip, ...]
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A trial at (x, y) in a chart, and the outcome of the trial."""

    x: int
    y: int
    tone: Tone
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A chart of trial runs over one or two option values. It has a line through given points, and optionally a limit
    of y.
    """

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
    """The texts in the chart's legend for good, unsure and bad points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A named size in bytes. Its tone shows whether the size is above or below the limit."""

    label: str
    size_bytes: int
    tone: Tone
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A bar chart of named sizes, one below the other. One limit is drawn across all of them."""

    title: str
    bars: tuple[Bar, ...]
    limit_bytes: int
    limit_label: str


Picture = Stack | Icicle | Map | Plot | Bars | BlockHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report: a headline with its tone, one sentence, and sections in reading order.

    Charts appear only on an HTML page. A terminal shows a short report, unless the user requests the whole report.
    """

    headline: str
    tone: Tone
    subject: str
    sentence: str
    sections: tuple[Section, ...]
    pictures: tuple[Picture, ...] = ()
    details: tuple[Section, ...] = ()
    """The sections that a short report leaves out."""
    more: str = ""
    """A hint that says how to see the sections that a short report leaves out."""
