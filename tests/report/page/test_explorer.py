"""The picture of blocks in a real browser: it shows what was recorded, and everything on it does what it says."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.describe import describe
from ullage.report.blocks import Facet
from ullage.report.page.html import draw_page

from .conftest import DATA, ROOT, Shown

NORMAL = DATA / "normal.pickle.gz"  # 6,901 events
LARGE = DATA / "variable_length_oom.pickle.gz"  # 88,289 events
Show = Callable[[Path], Shown]


@pytest.fixture
def normal(shown: Show) -> Shown:
    found = shown(NORMAL)
    found.open()
    return found


def million(folder: Path) -> Path:
    """A recording of a million events."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from snapshot import make

    make(folder / "million.pickle", 62)
    return folder / "million.pickle"


def alive_at(found: Shown, moment: int) -> np.ndarray:
    blocks = found.history.blocks
    return np.flatnonzero((blocks.born <= moment) & (blocks.born + blocks.life + blocks.wait > moment))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("events", ["10^4", "10^5", "10^6"])
def test_a_page_of_any_run_fits_its_window_and_needs_nothing_from_outside(
    shown: Show, tmp_path: Path, events: str, width: int, dark: bool
) -> None:
    if events == "10^6" and not (os.environ.get("ULLAGE_SLOW") and width == 1200 and not dark):
        pytest.skip("a million events: one size and scheme, with ULLAGE_SLOW=1")
    found = shown({"10^4": NORMAL, "10^5": LARGE}.get(events) or million(tmp_path))
    found.open(width, dark=dark)
    assert found.page.stat().st_size < 10_000_000
    assert found.browser.value("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
    beyond = found.browser.value(
        "[...document.querySelectorAll('body *')].filter((each) => !each.closest('[hidden]')"
        " && each.getBoundingClientRect().right > innerWidth + 1).map((each) => each.outerHTML.slice(0, 200))"
    )
    assert beyond == []
    assert (found.browser.errors, found.browser.requests) == ([], [])


def test_levels_are_those_of_the_report(shown: Show) -> None:
    found = shown(LARGE)
    found.open()
    evidence = found.explanation.evidence
    here = "e.lives.allocated[e.moment], e.lives.active[e.moment], e.lives.reserved[e.moment]"
    allocated, active, reserved = found.ask(f"[{here}]")
    assert (allocated, reserved) == (evidence["allocated_bytes"], evidence["reserved_bytes"])
    assert active == allocated + evidence["pending_bytes"]
    assert found.ask("Math.max(...e.lives.reserved)") == evidence["peak_reserved_bytes"]
    said = found.ask("e.$('levels').textContent")
    assert said.startswith(f"{text_of_bytes(reserved)} reserved: {text_of_bytes(allocated)} allocated")


def test_a_request_that_failed_is_named(shown: Show) -> None:
    found = shown(LARGE)
    found.open()
    said = found.ask("e.$('happens').textContent")
    assert said.startswith("the request that failed: event 88,289 (")
    assert said.endswith("345.0 MiB are requested at project/workloads.py:46")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_each_column_is_filled_as_high_as_memory_was(normal: Shown, share: float) -> None:
    """The pixels themselves: from the bottom up to the bytes in use at the fullest moment of the column."""
    normal.click("out")
    column, moment, top, height, filled = normal.ask(
        f"""(() => {{
          const {{ columns, top }} = e.strata.drawn;
          const column = Math.floor({share} * columns.length);
          const {{ width, height }} = e.strata.image;
          const data = new Uint32Array(e.strata.image.getContext("2d").getImageData(column, 0, 1, height).data.buffer);
          return [column, columns[column], top, height, data.findIndex((each) => each !== e.looks.empty)];
        }})()"""
    )
    blocks = normal.history.blocks
    expected = int(blocks.size_bytes[alive_at(normal, moment)].sum()) / top * height
    assert abs((height - filled) - expected) <= 2, (column, moment)


def test_each_block_is_drawn_in_its_place_and_colour(shown: Show) -> None:
    found = shown(LARGE)
    found.open()
    blocks, seen = found.history.blocks, 0
    for share in (0.6, 0.75, 0.9):
        column = int(share * found.ask("e.strata.image.width"))
        moment, before, top, height = found.ask(
            f"[e.strata.drawn.columns[{column}], e.strata.drawn.columns[{column - 2}], e.strata.drawn.top, "
            "e.strata.image.height]"
        )
        alive = alive_at(found, moment)
        ends = np.cumsum(blocks.size_bytes[alive]) / top * height
        for block, end, size in zip(alive.tolist(), ends.tolist(), blocks.size_bytes[alive].tolist(), strict=True):
            if size / top * height < 2 or blocks.born[block] >= before:
                continue
            row = int(height - (end - size / top * height / 2))
            drawn, looks = found.ask(
                f"""[new Uint32Array(e.strata.image.getContext("2d").getImageData({column}, {row}, 1, 1).data.buffer)
                [0], [e.looks.looks[e.looks.lookOf[{block}]], e.looks.pale[e.looks.lookOf[{block}]]]]"""
            )
            assert drawn in looks, (column, row, block)
            label = found.history.facets[0].of_block[block]
            assert found.ask(f"e.looks.lookOf[{block}] >> 2") == min(label, 7)
            seen += 1
    assert seen > 10


def test_under_the_pointer_is_the_block_that_lies_there(normal: Shown) -> None:
    """The oldest blocks lie at the bottom: the one at a height is told by summing up their sizes."""
    x, y, width, height = normal.box("strata")
    seen = 0
    for across, up in ((0.3, 0.12), (0.5, 0.14), (0.7, 0.2), (0.9, 0.6), (0.4, 0.25)):
        at = (x + across * width, y + (1 - up) * height)
        normal.browser.mouse("move", *at)
        moment, level = normal.ask(
            f"(({{moment, bytes}}) => [moment, bytes])(e.strata.under({{clientX: {at[0]}, clientY: {at[1]}}}))"
        )
        alive = alive_at(normal, moment)
        tops = np.cumsum(normal.history.blocks.size_bytes[alive])
        text = normal.ask("e.$('tip').textContent")
        if level >= tops[-1]:
            assert "in use" in text
            continue
        block = int(alive[np.searchsorted(tops, level, side="right")])
        lines = normal.history.facets[0]
        assert text.startswith(
            f"{text_of_bytes(int(normal.history.blocks.size_bytes[block]))}  {lines.labels[lines.of_block[block]]}"
        )
        seen += 1
    assert seen >= 2
    left, _, wide, _ = normal.box("tip")
    assert left >= 0
    assert left + wide <= 1200


def test_a_click_shows_the_whole_stack_and_that_moment(normal: Shown) -> None:
    x, y, width, height = normal.box("strata")
    normal.browser.mouse("move", x + 0.5 * width, y + 0.88 * height)
    normal.browser.mouse("press", x + 0.5 * width, y + 0.88 * height, pressed=True)
    normal.browser.mouse("release", x + 0.5 * width, y + 0.88 * height)
    moment = normal.ask("e.moment")
    assert moment != normal.history.moment
    frames = normal.ask("e.$('chosen').querySelector('pre').textContent").splitlines()
    assert len(frames) > 3
    known = {("▸ " if own else "  ") + text
             for text, own in zip(normal.history.stacks.texts, normal.history.stacks.is_own, strict=True)}  # fmt: skip
    assert set(frames) <= known


def test_events_are_stepped_through_one_by_one(normal: Shown) -> None:
    blocks, event = normal.history.blocks, normal.history.event
    begin = len(event) // 2
    normal.choose("event", int(event[begin]))
    assert normal.ask("e.moment") == begin
    for _ in range(6):
        normal.click("next")
        moment = normal.ask("e.moment")
        said = normal.ask("e.$('happens').textContent")
        assert f"event {event[moment]:,} " in said
        born = np.flatnonzero(blocks.born == moment)
        freed = np.flatnonzero(blocks.born + blocks.life == moment)
        assert len(born) + len(freed) == 1
        what, block = ("allocates", born[0]) if len(born) else ("frees", freed[0])
        assert f"{what} {text_of_bytes(int(blocks.size_bytes[block]))} of " in said
    normal.click("previous")
    assert normal.ask("e.moment") == begin + 5
    normal.click("first")
    assert normal.ask("e.moment") == normal.history.moment


def test_segments_hold_all_blocks_of_the_moment(normal: Shown) -> None:
    for moment in (1, len(normal.history.event) // 3, normal.history.moment):
        normal.ask(f"(e.chooseMoment({moment}), 0)")
        whole, held, count = normal.ask(
            """(() => {
              const all = e.panel.layout.bands.flatMap((band) => band.segments.map(({ segment }) => segment));
              const sum = (values) => values.reduce((total, each) => total + each, 0);
              return [sum(all.map(lengthOf)), sum(all.map((each) => usedOf(each, e.lives))),
                      sum(all.map((each) => each.blocks.length))];
            })()"""
        )
        alive = alive_at(normal, moment)
        assert count == len(alive)
        assert held == normal.history.blocks.size_bytes[alive].sum()
        assert whole == normal.ask(f"e.lives.reserved[{moment}]")


def test_a_segment_under_the_pointer_tells_its_block_or_its_hole(normal: Shown) -> None:
    normal.browser.value("document.querySelector('.blocks .segments').scrollIntoView()")
    x, y, width, _ = normal.box("segments")
    said = set()
    for across in np.linspace(0.01, 0.99, 40):
        normal.browser.mouse("move", x + float(across) * width, y + 22 + 8)
        said.add(normal.ask("e.$('tip').hidden ? '' : e.$('tip').textContent"))
    assert any("allocated at event" in text or "there from the beginning" in text for text in said)
    assert all("in the segment of" in text for text in said if text)


def test_blocks_below_a_size_become_one_band(normal: Shown) -> None:
    before = normal.ask("e.strata.drawn.top")
    normal.choose("smallest", 3)  # 16 MiB
    assert normal.ask("e.smallest") == 1 << 24
    assert normal.ask("e.strata.drawn.top") == before, "the sum stays"
    moment = normal.history.moment
    sizes = normal.history.blocks.size_bytes[alive_at(normal, moment)]
    small = int(sizes[sizes < 1 << 24].sum())
    assert small > 0
    assert normal.ask(f"blockAt(e.lives, {moment}, {small - 1}, e.smallest)") == -1
    if (sizes >= 1 << 24).any():
        first = alive_at(normal, moment)[int(np.argmax(sizes >= 1 << 24))]
        assert normal.ask(f"blockAt(e.lives, {moment}, {small}, e.smallest)") == first


def test_a_line_or_a_function_is_found(normal: Shown) -> None:
    stacks, blocks = normal.history.stacks, normal.history.blocks
    query = next(text for text, own in zip(stacks.texts, stacks.is_own, strict=True) if own).rsplit("/", 1)[-1]
    matching = {
        stack
        for stack in range(len(stacks.starts) - 1)
        if any(query in stacks.texts[frame] for frame in stacks.frames[stacks.starts[stack] : stacks.starts[stack + 1]])
    }
    expected = sum(stack in matching for stack in blocks.stack.tolist())
    normal.choose("find", query.upper(), "input")
    normal.browser.wait("document.querySelector('.found').textContent")
    assert normal.ask("e.$('found').textContent").startswith(f"{expected:,} block")
    assert normal.ask("e.looks.matches.reduce((sum, each) => sum + each, 0)") == expected
    normal.choose("find", "no such line", "input")
    normal.browser.wait("document.querySelector('.found').textContent === 'no block found'")
    normal.choose("find", "", "input")
    assert normal.ask("e.looks.matches") is None


def test_a_click_on_a_colour_shows_its_blocks_alone(normal: Shown) -> None:
    facet = normal.history.facets[0]
    normal.ask("(e.$('legend').querySelectorAll('button')[1].click(), 0)")
    assert normal.ask("e.$('find').value") == facet.labels[1]
    matches = normal.ask("[...e.looks.matches]")
    assert all(match for match, label in zip(matches, facet.of_block.tolist(), strict=True) if label == 1)
    normal.ask("(e.$('legend').querySelectorAll('button')[1].click(), 0)")
    assert normal.ask("[e.$('find').value, e.looks.matches]") == ["", None]


def test_parts_zoom_and_axis_stay_within_the_run(normal: Shown) -> None:
    parts = normal.ask("[...e.$('part').options].map((each) => each.text)")
    assert parts[:3] == ["the whole run", "the step of the peak", "step 1"]
    end = int(normal.history.time_us[-1])
    normal.axis("time")
    for deed in ("in", "in", "right", "right", "right", "out", "out", "out", "out", "behind", "left", "before"):
        normal.click(deed)
        start, stop = normal.ask("[e.view.from, e.view.to]")
        assert 0 <= start < stop <= end + 1
    normal.choose("part", 3)  # step 2
    first, second = normal.history.step_ends[:2]
    times = normal.history.time_us
    assert normal.ask("[e.view.from, e.view.to]") == [times[first], times[second]]
    normal.axis("events")
    start, stop = normal.ask("[e.view.from, e.view.to]")
    assert abs(start - first) <= 8
    assert abs(stop - second) <= 8


def test_drag_zooms_and_a_double_click_goes_back(normal: Shown) -> None:
    normal.axis("time")
    x, y, width, height = normal.box("strata")
    places = [x + share * width for share in (0.3, 0.45, 0.6)]
    normal.browser.mouse("press", places[0], y + height / 2, pressed=True)
    for place in places[1:]:
        normal.browser.mouse("move", place, y + height / 2, pressed=True)
    normal.browser.mouse("release", places[-1], y + height / 2)
    start, stop = normal.ask("[e.view.from, e.view.to]")
    end = int(normal.history.time_us[-1])
    assert 0 < start < stop < end
    assert normal.ask("e.$('part').selectedOptions[0].text") == "a part of the run"
    normal.ask("(e.$('strata').dispatchEvent(new MouseEvent('dblclick')), 0)")
    assert normal.ask("[e.view.from, e.view.to]") == [0, end]


def test_a_tall_box_zooms_into_heights_too(normal: Shown) -> None:
    x, y, width, height = normal.box("strata")
    corners = [
        (x + 0.4 * width, y + 0.85 * height),
        (x + 0.5 * width, y + 0.7 * height),
        (x + 0.6 * width, y + 0.5 * height),
    ]
    low, high = (
        normal.ask(f"e.strata.under({{clientX: {a}, clientY: {b}}}).bytes") for a, b in (corners[0], corners[2])
    )
    normal.browser.mouse("press", *corners[0], pressed=True)
    for corner in corners[1:]:
        normal.browser.mouse("move", *corner, pressed=True)
    normal.browser.mouse("release", *corners[2])
    assert normal.ask("[e.strata.drawn.floor, e.strata.drawn.top]") == [low, high]
    place = (x + 0.7 * width, y + 0.8 * height)
    normal.browser.mouse("move", *place)
    moment, level = normal.ask(
        f"(({{moment, bytes}}) => [moment, bytes])(e.strata.under({{clientX: {place[0]}, clientY: {place[1]}}}))"
    )
    assert low < level < high
    alive = alive_at(normal, moment)
    tops = np.cumsum(normal.history.blocks.size_bytes[alive])
    filled = normal.ask(
        f"""(() => {{
          const {{ width, height }} = e.strata.image;
          const column = e.strata.drawn.columns.indexOf({moment});
          const data = new Uint32Array(e.strata.image.getContext("2d").getImageData(column, 0, 1, height).data.buffer);
          const first = data.findIndex((each) => each !== e.looks.empty);
          return first < 0 ? 0 : (height - first) / height;
        }})()"""
    )
    expected = min(1.0, max(0.0, (float(tops[-1]) - low) / (high - low)))
    assert abs(filled - expected) < 0.02
    normal.click("in")
    assert normal.ask("e.strata.drawn.floor") == low, "zooming in time leaves the heights"
    normal.ask("(e.$('strata').dispatchEvent(new MouseEvent('dblclick')), 0)")
    assert normal.ask("e.strata.drawn.floor") == 0


def test_work_is_cut_into_slices_however_long_the_run(shown: Show) -> None:
    """No slice of the drawing looks at more than a fixed number of blocks and pixels, by the count of its pauses."""
    found = shown(LARGE)
    found.open()
    slices, work = found.ask(
        """(() => {
          const view = { from: 0, to: e.lives.moments - 1, byTime: false };
          const columns = columnsOf(e.lives, view, 1000);
          const pixels = new Uint32Array(1000 * 300);
          const area = { pixels, width: 1000, height: 300, floor: 0, top: 2 ** 34, stride: 1 };
          let slices = 1;
          for (const _ of strata(e.lives, columns, { ...e.looks, smallest: 0 }, area)) slices++;
          let work = 0;
          for (const moment of new Set(columns.at)) work += e.lives.alive(moment).length;
          return [slices, work + e.lives.count];
        })()"""
    )
    assert slices >= work / 250_000
    assert slices > 1


def test_the_axis_is_in_events_where_time_would_hide_them(shown: Show) -> None:
    """Two thirds of the time of that recording pass before anything happens."""
    found = shown(DATA / "two_streams.pickle.gz")
    found.open()
    times = found.history.time_us
    assert np.diff(times).max() > times[-1] / 2
    assert found.ask("[e.byTime, e.$('axis').selectedOptions[0].text]") == [False, "events"]
    assert found.ask("[...e.$('facet').options].map((each) => each.text)") == ["your line", "stream", "role"]


def test_the_shortest_way_to_a_line_is_its_colour(normal: Shown) -> None:
    """A line has one colour: in the legend, in the tree, and in the table of who held what."""
    label = normal.history.facets[0].labels[0]
    row = "[...document.querySelectorAll('.shares tr')].find((each) => each.textContent.includes(label))"
    leaf = "[...document.querySelectorAll('.tree p')].find((each) => each.textContent.includes(label))"
    chip = "e.$('legend').querySelector('i')"
    bars = normal.ask(
        f"((label) => [{row}, {leaf}].map((each) => getComputedStyle(each.querySelector('i')).backgroundColor)"
        f".concat(getComputedStyle({chip}).backgroundColor))({label!r})"
    )
    assert len(set(bars)) == 1
    assert normal.ask("[...e.$('legend').children][1].textContent").startswith(label)


def test_a_peak_of_one_event_is_seen(shown: Show) -> None:
    """Wherever it is looked at from, the highest pixel of a picture stands for the peak of what is shown."""
    found = shown(LARGE)
    found.open()
    for part in (0, 1, 5):
        found.choose("part", part)
        top, height, highest = found.ask(
            """(() => {
              const { width, height } = e.strata.image;
              const data = e.strata.image.getContext("2d").getImageData(0, 0, width, height).data;
              const first = new Uint32Array(data.buffer).findIndex((each) => each !== e.looks.empty);
              return [e.strata.drawn.top, height, Math.floor(first / width)];
            })()"""
        )
        first, last = found.ask("[e.view.from, e.view.to].map((place) => e.lives.at(place, e.byTime))")
        peak = found.ask(f"Math.max(...e.lives.active.slice({first}, {last} + 1))")
        assert abs((height - highest) - peak / top * height) <= 2, part


def test_any_facet_can_be_the_colour_and_roles_have_theirs(shown: Show, tmp_path: Path) -> None:
    """What blocks are told apart by is a field: here each second one is called a parameter, the others activations."""
    recorded = shown(NORMAL)
    history = recorded.history
    of_block = np.arange(len(history.blocks.born)) % 2
    role = Facet(title="role", labels=("parameters", "activations"), of_block=of_block)
    blocks = replace(history, facets=(role, *history.facets))
    page = tmp_path / "roles.html"
    page.write_text(draw_page(replace(describe(recorded.explanation), pictures=(blocks,))))
    found = Shown(recorded.browser, page, recorded.explanation)
    found.open()
    chips = "[...e.$('legend').querySelectorAll('button')].map((each) => each.querySelector('i').style.background)"
    assert found.ask(chips) == ["var(--c0)", "var(--c3)"]
    alive = alive_at(found, history.moment)
    held = int(history.blocks.size_bytes[alive[of_block[alive] == 0]].sum())
    said = found.ask("e.$('legend').querySelector('button').textContent")
    assert said == f"parameters  {text_of_bytes(held)}"
    found.choose("facet", 1)
    assert found.ask("e.$('legend').querySelector('button').textContent").startswith(history.facets[0].labels[0])
    assert (found.browser.errors, found.browser.requests) == ([], [])
