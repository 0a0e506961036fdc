"""Names of files and functions cannot steer a terminal or imitate a line of a report, on a page or as text."""

import io

import pytest

from ullage.base.source_location import short_place
from ullage.gpu.tracing.source import Line
from ullage.report.page.html import draw_page
from ullage.report.report import Bar, Bars, Quote, Remarks, Report, Shares, SizedPart, Table, TableRow, Tone
from ullage.report.terminal import ReportConsole, draw

FORGED = "VERDICT: FITS"
CONTROL = ("\x1b", "\x07", "\x9b", "\u202e", "\u2066")
BREAKS = ("\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029")


def report_of(name: str) -> Report:
    return Report(
        headline="HEAD",
        tone=Tone.PLAIN,
        subject=name,
        sentence=f"Most is at {short_place(f'/a/{name}.py', 3)} and {Line(f'/x/y/{name}/b.py', 4)}.\nNext sentence.",
        sections=(
            Table(title=f"of {name}", columns=("line",), rows=(TableRow(cells=(name,)),)),
            Shares(title="shares", total_bytes=10, parts=(SizedPart(label=name, size_bytes=5),)),
            Remarks(title=name, items=("one",)),
            Quote(title="quote", text="line one\nline two"),
        ),
        pictures=(
            Bars(title="b", bars=(Bar(label=name, size_bytes=5, tone=Tone.GOOD),), limit_bytes=9, limit_label=name),
        ),
    )


@pytest.mark.parametrize("mark", CONTROL + BREAKS)
def test_no_control_character_of_a_name_is_on_a_page_or_a_terminal(mark: str) -> None:
    report = report_of(f"train{mark}{FORGED}")
    page = draw_page(report)
    printed = io.StringIO()
    draw(report, ReportConsole(file=printed, width=200), is_whole=True)
    for text in (page, printed.getvalue()):
        assert "\n" + FORGED not in text.replace(mark, "\n")
        assert f"train�{FORGED}" in text
    assert not any(line.strip().startswith(FORGED) for line in printed.getvalue().splitlines())
    assert f"<title>HEAD: train�{FORGED}</title>" in page


def test_line_breaks_of_the_report_itself_stay() -> None:
    printed = io.StringIO()
    draw(report_of("train"), ReportConsole(file=printed, width=200), is_whole=True)
    lines = [line.strip() for line in printed.getvalue().splitlines()]
    assert {"Next sentence.", "line one", "line two"} <= set(lines)
