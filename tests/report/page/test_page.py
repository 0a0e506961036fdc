"""A page holds the report's own words, and nothing in them can become a script."""

import base64
import json
import re
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ullage.report.blocks import BlockHistory, Facet, LifeColumns, SegmentColumns, StackColumns
from ullage.report.page.html import draw_page
from ullage.report.page.slim import packed, packed_within, slimmed
from ullage.report.page.tree import tree_of
from ullage.report.report import Icicle, Meter, Quote, Remarks, Report, Shares, SizedPart, Stack, Table, TableRow, Tone

EVIL = "</script><script>alert(1)</script>&<b>"


def column(*values: int) -> Any:
    return np.array(values, np.int64)


BLOCKS = BlockHistory(
    title=EVIL,
    event=column(0, 1, 2),
    time_us=column(),
    blocks=LifeColumns(
        born=column(1), life=column(1), wait=column(0), size_bytes=column(512), address=column(0), stack=column(0)
    ),
    facets=(Facet(title=EVIL, labels=(EVIL,), of_block=column(0)),),
    segments=SegmentColumns(
        born=column(1),
        life=column(2),
        address=column(0),
        size_bytes=column(1 << 21),
        is_page=column(0),
        kind=column(0),
        kinds=(EVIL,),
    ),
    stacks=StackColumns(starts=column(0, 1), frames=column(0), texts=(EVIL,), is_own=(True,)),
    step_ends=(),
    moment=1,
    moment_label=EVIL,
    moment_remark=EVIL,
)


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
        pictures=(
            Icicle(title=EVIL, levels=("a",), leaves=(((EVIL,), 5, EVIL),)),
            Stack(title=EVIL, series=((EVIL, (1, 2)),), marks=(), mark_label=EVIL),
            BLOCKS,
        ),
    )


def test_names_of_files_cannot_become_scripts(report: Report) -> None:
    page = draw_page(report)
    assert "<script>alert" not in page
    assert EVIL not in page
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["pictures"][0]["series"] == [[EVIL, [1, 2]]]
    kept = re.search(r'<script type="text/plain" id="packed-2">([A-Za-z0-9+/=]*)</script>', page)
    assert kept is not None
    text, _ = unpacked(kept[1])
    assert text["stacks"]["texts"] == [EVIL]
    assert text["facets"][0]["labels"] == [EVIL]


def test_a_report_without_curves_carries_no_library(report: Report) -> None:
    assert len(draw_page(report)) > 1_000_000
    page = draw_page(replace(report, pictures=(BLOCKS,)))
    assert len(page) < 80_000
    page = draw_page(replace(report, pictures=()))
    assert len(page) < 30_000
    assert "1.0 MiB" in page


def unpacked(text: str) -> tuple[dict[str, Any], bytes]:
    """What the page's script reads: the JSON, and the bytes of the columns."""
    whole = zlib.decompress(base64.b64decode(text))
    end = 4 + int.from_bytes(whole[:4], "little")
    found: dict[str, Any] = json.loads(whole[4:end])
    return found, whole[end:]


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0],
        [7, 3, -1, 255],
        [512, 1024, 512 * 70_000],
        [1 << 47, (1 << 47) + 513, 5],
        [-1, (1 << 53) - 1 - (1 << 20)],
    ],
)
@pytest.mark.parametrize("name", ["stack", "born"])
def test_columns_come_back_as_they_were(values: list[int], name: str) -> None:
    values = sorted(values) if name == "born" else values
    columns = replace(BLOCKS.blocks, **{name: np.array(values, np.int64)})
    text, content = unpacked(packed(columns))
    column = text[name]
    assert column["n"] == len(values)
    found, before = [], 0
    for row in range(column["n"]):  # as columns.js does it
        places = (column["at"] + plane * column["n"] + row for plane in range(column["width"]))
        number = sum(content[place] << (8 * plane) for plane, place in enumerate(places))
        before = number * column["unit"] + column["low"] + (before if column["sums"] else 0)
        found.append(before)
    assert found == values


def test_a_tree_joins_chains_and_sums_up_the_smallest() -> None:
    leaves = [(("main", "loop", f"line {n}"), 1000 - n, "") for n in range(40)]
    [chain] = tree_of(Icicle(title="", levels=(), leaves=tuple(leaves)))
    assert chain.names == ("main", "loop")
    assert [branch.names for branch in chain.branches[:2]] == [("line 0",), ("line 1",)]
    assert chain.branches[-1].names == ("(16 smaller)",)
    assert sum(branch.size_bytes for branch in chain.branches) == chain.size_bytes == sum(size for _, size, _ in leaves)


@pytest.mark.parametrize("most", [1, 100, 500])
def test_too_many_blocks_are_summed_up_and_every_level_stays(most: int) -> None:
    """What is left of a run has the same peaks, and at each moment that is left the same bytes as before."""
    rng = np.random.default_rng(most)
    moments, count = 2001, 1000
    born = np.sort(rng.integers(0, moments, count))
    history = replace(
        BLOCKS,
        event=np.arange(moments),
        time_us=np.arange(moments) * 10,
        blocks=LifeColumns(
            born=born,
            life=np.minimum(rng.integers(1, 800, count), moments - born),
            wait=np.zeros(count, np.int64),
            size_bytes=rng.integers(1, 4000, count) * 512,
            address=np.arange(count) << 21,
            stack=rng.integers(-1, 1, count),
        ),
        facets=(Facet(title="line", labels=("a", "b"), of_block=rng.integers(0, 2, count)),),
        step_ends=(500, 1500),
        moment=777,
    )
    slim = slimmed(history, most)
    assert len(slim.blocks.born) == len(slim.facets[0].of_block) == most

    def level(one: BlockHistory) -> Any:
        change = np.zeros(len(one.event) + 1, np.int64)
        np.add.at(change, one.blocks.born, one.blocks.size_bytes)
        np.add.at(change, one.blocks.born + one.blocks.life, -one.blocks.size_bytes)
        return np.cumsum(change)[:-1] + (one.small_bytes if len(one.small_bytes) else 0)

    assert level(slim).tolist() == level(history)[slim.event].tolist()
    assert level(slim).max() == level(history).max()
    assert slim.event[slim.moment] == 777
    assert slim.event[list(slim.step_ends)].tolist() == [500, 1500]
    assert slim.blocks.size_bytes.min() >= np.sort(history.blocks.size_bytes)[-most]
    assert slim.small_label.startswith(f"{1000 - most:,} blocks of at most ")


def test_a_page_has_as_many_blocks_as_fit_into_it() -> None:
    rng = np.random.default_rng(0)
    count = 20_000
    blocks = {name: rng.integers(0, 1 << 40, count) for name in ("address", "size_bytes")}
    blocks |= {"born": np.sort(rng.integers(0, count, count)), "life": rng.integers(1, count, count)}
    blocks |= {"wait": np.zeros(count, np.int64), "stack": np.zeros(count, np.int64)}
    facet = Facet(title="", labels=("",), of_block=np.zeros(count, np.int64))
    history = replace(BLOCKS, event=np.arange(count), time_us=column(), blocks=LifeColumns(**blocks), facets=(facet,))
    most = 150_000
    assert len(packed(history)) > 2 * most
    text = packed_within(history, most_letters=most)
    assert most / 2 < len(text) <= most
    found, _ = unpacked(text)
    assert 1000 < found["blocks"]["born"]["n"] < count
    assert packed_within(history) == packed(history)
