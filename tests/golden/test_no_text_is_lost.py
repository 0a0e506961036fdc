"""No character of a report is lost on a terminal of any width from 40 to 200 columns.

Each report is drawn at a part of the widths, and every width is that of some reports; made-up sections are drawn at
any. Every character of a report's texts is replaced by one that occurs once (private use, one cell wide), so that what
is drawn tells which characters are there, and in which order.
"""

import dataclasses
import io
import itertools
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.explaining.analysis.test_explain_text import CASES
from tests.golden.test_report import REPORTS
from tests.recorded.message.test_message import WORDINGS
from ullage.explaining.analysis.describe import describe as describe_explanation
from ullage.explaining.analysis.explain import explain
from ullage.explaining.analysis.text.describe import describe_text
from ullage.explaining.analysis.text.explain import explain_text
from ullage.recorded.snapshot.snapshot import load_snapshot
from ullage.report.report import (
    Curve,
    LabeledText,
    Meter,
    Quote,
    Remarks,
    Report,
    Shares,
    SizedPart,
    Table,
    TableRow,
    Tone,
    Within,
)
from ullage.report.terminal import draw

WIDTHS = range(40, 201)
GOLDEN_PARTS = 5
OTHER_PARTS = 40
WIDE = 20_000
"""Columns on which nothing has to be wrapped."""
PRIVATE = range(0xF0000, 0xFFFFE)
MARKS = frozenset(map(chr, PRIVATE))
SNAPSHOTS = sorted((Path(__file__).parents[1] / "snapshots").glob("*.pickle.gz"))
TEXTS = {name: text for name, (text, *_) in (*WORDINGS.items(), *CASES.items())}


def drawn(report: Report, width: int, *, is_whole: bool) -> str:
    """What a terminal of a width shows of a report."""
    stream = io.StringIO()
    draw(report, Console(file=stream, width=width, highlight=False, force_terminal=False), is_whole=is_whole)
    return stream.getvalue()


def marked(thing: Any, marks: Iterator[int], texts: list[str]) -> Any:
    """The same report with each character that is no space replaced by the next mark; its texts go into a list."""
    if isinstance(thing, str):
        texts.append("".join(letter if letter.isspace() else chr(next(marks)) for letter in thing))
        return texts[-1]
    if isinstance(thing, tuple):
        return tuple(marked(each, marks, texts) for each in thing)
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        names = [field.name for field in dataclasses.fields(thing) if field.name != "pictures"]
        return dataclasses.replace(thing, **{name: marked(getattr(thing, name), marks, texts) for name in names})
    assert thing is None or isinstance(thing, int | float | Enum)
    return thing


def not_shown_whole(report: Report) -> set[str]:
    """The texts that only a short report has, and the headings of columns that have no text."""
    tables = [section for section in (*report.sections, *report.details) if isinstance(section, Table)]
    headings = (
        heading
        for table in tables
        for number, heading in enumerate(table.columns)
        if not any(row.cells[number].strip() for row in table.rows)
    )
    return {report.more, *headings, *(line for table in tables for line in table.instead)}


def check(report: Report, widths: range) -> None:
    """Draw a report at widths: each text is there with all its characters in their order, and so is each figure."""
    texts: list[str] = []
    unique = marked(report, iter(PRIVATE), texts)
    without_marks = dataclasses.replace(
        report,
        sections=tuple(  # numbers of steps below a curve that would overlap are left out there
            dataclasses.replace(section, marks=()) if isinstance(section, Curve) else section
            for section in report.sections
        ),
    )
    for is_whole, shown in ((True, widths), (False, widths[::8])):
        wide = drawn(unique, WIDE, is_whole=is_whole)
        there = MARKS.intersection(wide)
        expected = [text for text in texts if not there.isdisjoint(text)]
        if is_whole:
            assert {text for text in texts if text.strip()} - set(expected) <= not_shown_whole(unique)
        figures = Counter(filter(str.isalnum, drawn(without_marks, WIDE, is_whole=is_whole)))
        for width in shown:
            seen = drawn(unique, width, is_whole=is_whole)
            places = {letter: place for place, letter in enumerate(seen)}
            for text in expected:
                found = [places.get(letter, -1) for letter in text if not letter.isspace()]
                assert all(before < after for before, after in itertools.pairwise([-1, *found])), (width, text, seen)
            lost = figures - Counter(filter(str.isalnum, drawn(without_marks, width, is_whole=is_whole)))
            assert not lost, (width, lost)


@pytest.mark.parametrize("name", REPORTS)
def test_what_was_found_good_is_whole_at_every_width(name: str) -> None:
    check(REPORTS[name], WIDTHS[list(REPORTS).index(name) % GOLDEN_PARTS :: GOLDEN_PARTS])


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.name.partition(".")[0])
def test_an_explanation_is_whole_at_every_width(path: Path) -> None:
    check(
        describe_explanation(explain(load_snapshot(path).devices[0], source=path.name)),
        WIDTHS[SNAPSHOTS.index(path) :: OTHER_PARTS],
    )


@pytest.mark.parametrize("name", TEXTS)
def test_the_explanation_of_a_text_is_whole_at_every_width(name: str) -> None:
    check(
        describe_text(explain_text(TEXTS[name], source=name)),
        WIDTHS[list(TEXTS).index(name) % OTHER_PARTS :: OTHER_PARTS],
    )


def words(letters: str = "ab1-/._:汉") -> st.SearchStrategy[str]:
    """Texts with words of any length, some of wide letters, on one line or several."""
    word = st.text(letters, max_size=60)
    return st.builds(lambda found, between: between.join(found), st.lists(word, max_size=12), st.sampled_from(" \n"))


SIZES = st.integers(-(1 << 40), 1 << 40)
PARTS = st.lists(st.builds(SizedPart, label=words(), size_bytes=st.integers(0, 1 << 40), remark=words()), max_size=5)


@st.composite
def tables(draws: st.DrawFn) -> Table:
    """A table with rows as long as its headings."""
    columns = draws(st.lists(words(), min_size=1, max_size=6))
    row = st.builds(
        TableRow,
        cells=st.tuples(*(words() for _ in columns)),
        tone=st.sampled_from(Tone),
        share=st.none() | st.floats(0, 1),
        is_detail=st.booleans(),
    )
    rows = draws(st.lists(row, max_size=4))
    return Table(
        title=draws(words()), columns=tuple(columns), rows=tuple(rows), instead=tuple(draws(st.lists(words())))
    )


SECTIONS = st.one_of(
    tables(),
    st.builds(
        Meter,
        title=words(),
        total_bytes=st.integers(0, 1 << 40),
        total_label=words(),
        parts=PARTS.map(tuple),
        within=st.lists(st.builds(Within, label=words(), text=words()), max_size=3).map(tuple),
        rest_label=words(),
        is_compact=st.booleans(),
    ),
    st.builds(
        Shares,
        title=words(),
        total_bytes=st.integers(1 << 42, 1 << 43),
        parts=PARTS.map(tuple),
        short=st.none() | st.integers(1, 3),
    ),
    st.builds(
        Curve,
        title=words(),
        values=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=90).map(tuple),
        marks=st.just(()),
        mark_label=words(),
        remark=words(),
    ),
    st.builds(Quote, title=words(), text=words(), place=words()),
    st.builds(LabeledText, label=words(), text=words(), remark=words()),
    st.builds(Remarks, title=words(), items=st.lists(words(), max_size=4).map(tuple)),
)


@settings(max_examples=30)
@given(
    report=st.builds(
        Report,
        headline=words("AB"),
        tone=st.sampled_from(Tone),
        subject=words(),
        sentence=words(),
        sections=SECTIONS.map(lambda section: (section,)),
        more=words(),
    ),
    width=st.sampled_from(WIDTHS),
)
def test_every_kind_of_section_is_whole_at_every_width(report: Report, width: int) -> None:
    check(report, range(width, width + 1))
