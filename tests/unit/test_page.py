"""A page holds the report's own words, and nothing in them can become a script."""

import json
import re
from dataclasses import replace

import pytest

from ullage.report.page import draw_page
from ullage.report.report import Icicle, Meter, Quote, Remarks, Report, Shares, SizedPart, Table, TableRow, Tone

EVIL = "</script><script>alert(1)</script>&<b>"


@pytest.fixture
def report() -> Report:
    part = SizedPart(label=EVIL, size_bytes=1 << 20, remark=EVIL)
    return Report(
        headline=EVIL,
        tone=Tone.BAD,
        subject=EVIL,
        sentence=EVIL,
        sections=(
            Meter(title=EVIL, total_bytes=2 << 20, total_label=EVIL, parts=(part,), rest_label=EVIL),
            Shares(title=EVIL, total_bytes=0, parts=(part,)),
            Quote(title=EVIL, text=EVIL, place=EVIL),
            Remarks(title=EVIL, items=(EVIL,)),
            Table(title=EVIL, columns=(EVIL,), rows=(TableRow(cells=(EVIL,), share=0.5),)),
        ),
        pictures=(Icicle(title=EVIL, levels=("a",), leaves=(((EVIL,), 5, EVIL),)),),
    )


def test_names_of_files_cannot_become_scripts(report: Report) -> None:
    page = draw_page(report)
    assert "<script>alert" not in page
    assert EVIL not in page
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])[0]["leaves"] == [[[EVIL], 5, EVIL]]


def test_a_report_without_pictures_carries_no_library(report: Report) -> None:
    page = draw_page(replace(report, pictures=()))
    assert len(page) < 30_000
    assert "1.0 MiB" in page
