"""The pages of predictions in a real browser, with no network: drawn, without an error, alive under the pointer."""

import sys
import time
from pathlib import Path

import pytest

from tests.predicting.fitting.test_fit import fit
from tests.shared.commands import Predict, slow

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
from browser import BROWSER, Browser  # noqa: E402

needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
)


def until(browser: Browser, condition: str, action: tuple[str, float, float]) -> None:
    """Do something with the mouse until what it leads to is there: a library may not listen yet."""
    for _ in range(200):
        browser.mouse(*action)
        if browser.value(f"Boolean({condition})"):
            return
        time.sleep(0.05)
    raise AssertionError(f"never true: {condition}")


def assert_alive(page: Path, *, pictures: int) -> None:
    """The page is drawn without an error and without a network, and its first picture answers to the pointer."""
    assert page.stat().st_size < 6 << 20
    with Browser() as browser:
        for width in (400, 1000):
            browser.open(page, width=width)
            browser.wait("[...document.querySelectorAll('.picture')].every((each) => each.querySelector('svg'))")
            assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        shapes = (
            "[...document.querySelectorAll('.picture')].map((each) => each.querySelectorAll('path, .point').length)"
        )
        drawn = browser.value(shapes)
        assert len(drawn) == pictures
        assert all(number > 3 for number in drawn), drawn
        browser.value("document.getElementById('picture-0').scrollIntoView({block: 'center'})")
        box = browser.value(
            "(({x, y, width, height}) => [x, y, width, height])(document.querySelector"
            "('#picture-0 .nsewdrag').getBoundingClientRect())"
        )
        at = [(box[0] + share * box[2], box[1] + share * box[3]) for share in (0.2, 0.45, 0.7)]
        first = "document.getElementById('picture-0')"
        for place in at:
            browser.mouse("move", *place)
        until(browser, f"{first}.querySelector('.hoverlayer *')", ("move", *at[0]))
        before = browser.value(f"{first}.layout.yaxis.range.join()")
        browser.mouse("press", *at[0], pressed=True)
        browser.mouse("move", *at[1], pressed=True)
        browser.mouse("move", *at[2], pressed=True)
        browser.mouse("release", *at[2])
        browser.wait(f"{first}.layout.yaxis.range.join() !== '{before}'")
        assert browser.errors == []
        assert browser.requests == []


@needs_browser
def test_a_prediction_is_drawn_without_a_network(predict: Predict, workplace: Path) -> None:
    ended = predict("train.py", "--html", "page.html")
    assert ended.code == 0, ended.error
    page = workplace / "page.html"
    assert_alive(page, pictures=2)
    assert "FITS" in page.read_text()
    assert '<section class="tree">' in page.read_text()


@needs_browser
@slow
def test_a_frontier_is_drawn(workplace: Path) -> None:
    vary = ("--vary", "--batch-size=8..16:8", "--vary", "--width=64..128")
    ended = fit(workplace, *vary, "--no-changes", "--html", "page.html")
    assert ended.code == 0, ended.error
    assert_alive(workplace / "page.html", pictures=3)


def test_a_page_that_cannot_be_written_is_told_before_the_run(predict: Predict) -> None:
    ended = predict("train.py", "--html", "no/where.html")
    assert (ended.code, "the folder of --html no/where.html does not exist; create it first" in ended.error) == (
        2,
        True,
    )
