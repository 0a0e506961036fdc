"""A report as plain data: a headline and sections.

Each result has a function `describe` that makes a `Report`. The terminal's text and the HTML page are drawn from the
same object, so they cannot contradict each other.
"""

from dataclasses import dataclass
from enum import Enum

from ullage.base.errors import ExitCode
from ullage.report.blocks import BlockHistory


class Tone(Enum):
    """The meaning of a text, such as good or bad. It decides the text's colour."""

    GOOD = "good"
    BAD = "bad"
    UNSURE = "unsure"
    PLAIN = "plain"
    QUIET = "quiet"

    @classmethod
    def of_exit_code(cls, code: ExitCode) -> "Tone":
        """Return whether the exit code of a command stands for a good, a bad or an unsure result."""
        return {ExitCode.YES: cls.GOOD, ExitCode.UNKNOWN: cls.UNSURE}.get(code, cls.BAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedPart:
    """A named part of a total, in bytes."""

    label: str
    size_bytes: int
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """A size that is already included in other parts of a stacked bar.

    The legend lists it, but it has no segment in the bar.
    """

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """A total and its parts in bytes, drawn as a stacked bar. The rest is free memory."""

    title: str
    total_bytes: int
    total_label: str
    parts: tuple[SizedPart, ...]
    within: tuple[Within, ...] = ()
    rest_label: str = ""
    is_compact: bool = False
    """Whether a short report shows the bar without its title, and the parts next to each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Parts of a total in bytes, each drawn with a percentage and a bar."""

    title: str
    total_bytes: int
    parts: tuple[SizedPart, ...]
    short: int | None = None
    """The number of parts that a short report shows. It adds up the rest. None: all parts are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A named interval on the time axis of a chart."""

    label: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A memory level over time in bytes, with marked points and named intervals.

    Where intervals overlap, only the later one is drawn.
    """

    title: str
    values: tuple[int, ...]
    marks: tuple[int, ...]
    mark_label: str
    remark: str = ""
    bands: tuple[Band, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A quotation, which the report shows unchanged."""

    title: str
    text: str
    place: str = ""
    is_to_paste: bool = False
    """Whether users are meant to paste the text. If so, lines are not indented or wrapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabeledText:
    """A short text after a label, such as "Try first: ...", with an optional remark below it."""

    label: str
    text: str
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """A list of short sentences under a title."""

    title: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A table row, with its texts, its colour tone and an optional bar at the end."""

    cells: tuple[str, ...]
    tone: Tone = Tone.PLAIN
    share: float | None = None
    is_detail: bool = False
    """Whether a short report omits the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with column headings and rows of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    instead: tuple[str, ...] = ()
    """Sentences that a short report shows in place of omitted rows."""
    wraps: bool = False
    """Whether short texts may wrap on a narrow terminal. Tables that are still too wide are shown as lists."""


Section = Meter | Shares | Curve | Quote | LabeledText | Remarks | Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A stacked area chart over time in bytes.

    The areas are (label, values) pairs from the bottom up. Marks are indices in `values`.
    """

    title: str
    series: tuple[tuple[str, tuple[int, ...]], ...]
    marks: tuple[int, ...]
    mark_label: str
    bands: tuple[Band, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Icicle:
    """A tree of byte counts, drawn as nested rectangles.

    Each leaf has the names on its path, a size in bytes and a remark.
    """

    title: str
    levels: tuple[str, ...]
    """The names of the levels of nested rectangles, from the outermost to the innermost level."""
    leaves: tuple[tuple[tuple[str, ...], int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A memory segment with its name, its size and its blocks as (offset, bytes, label)."""

    name: str
    size_bytes: int
    blocks: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """A drawing of memory segments to scale, with the largest first."""

    title: str
    strips: tuple[Strip, ...]
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A trial run at (x, y) in a chart, with its outcome."""

    x: int
    y: int
    tone: Tone
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A chart of trial runs over one or two option values, with optional lines and a limit."""

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
    """The legend texts for trial runs that fit, that may not fit, and that do not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A named size in bytes. Its colour shows whether it is above or below the limit."""

    label: str
    size_bytes: int
    tone: Tone
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A bar chart of named sizes with one common limit."""

    title: str
    bars: tuple[Bar, ...]
    limit_bytes: int
    limit_label: str


Picture = Stack | Icicle | Map | Plot | Bars | BlockHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report with a headline, one sentence and sections.

    Charts appear only on an HTML page. A terminal shows a short report, unless the user requests the whole report.
    """

    headline: str
    tone: Tone
    subject: str
    sentence: str
    sections: tuple[Section, ...]
    pictures: tuple[Picture, ...] = ()
    details: tuple[Section, ...] = ()
    """The sections that a short report omits."""
    more: str = ""
    """A hint that says how to see the omitted sections."""
