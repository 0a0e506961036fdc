"""Pages of recorded runs in a real browser."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ullage.explaining.analysis.describe import describe
from ullage.explaining.analysis.explain import Explanation, explain
from ullage.recorded.snapshot.snapshot import load_snapshot
from ullage.report.blocks import BlockHistory
from ullage.report.page.html import draw_page

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests" / "snapshots"
sys.path.insert(0, str(ROOT / "tools"))
from browser import BROWSER, Browser  # noqa: E402


@dataclass
class Shown:
    """A page in the browser, and the data that it was drawn from."""

    browser: Browser
    page: Path
    explanation: Explanation

    @property
    def history(self) -> BlockHistory:
        assert self.explanation.picture is not None
        return self.explanation.picture.blocks

    def open(self, width: int = 1200, *, dark: bool = False) -> None:
        self.browser.errors.clear()
        self.browser.requests.clear()
        self.browser.open(self.page, width=width, dark=dark)
        self.browser.drawn()
        self.browser.value("document.querySelector('.overview').scrollIntoView()")

    def ask(self, expression: str) -> Any:
        """The value of an expression, in which `e` is the explorer of the page; all is drawn before and after it."""
        self.browser.drawn()
        found = self.browser.value(f"(() => {{ const e = document.querySelector('section.blocks').explorer; "
                                   f"return {expression}; }})()")  # fmt: skip
        self.browser.drawn()
        return found

    def choose(self, name: str, value: object, kind: str = "change") -> None:
        """Give a control a value, as a person does."""
        self.ask(f"(e.$('{name}').value = {str(value)!r}, e.$('{name}').dispatchEvent(new Event('{kind}')), 0)")

    def axis(self, name: str) -> None:
        index = ("time", "events").index(name)
        self.ask(f"(e.$('axis').selectedIndex = {index}, e.$('axis').dispatchEvent(new Event('change')), 0)")

    def click(self, name: str) -> None:
        self.ask(f"(e.$('{name}').click(), 0)")

    def box(self, name: str) -> list[float]:
        found: list[float] = self.browser.value(
            "(({x, y, width, height}) => [x, y, width, height])"
            f"(document.querySelector('section.blocks .{name}').getBoundingClientRect())"
        )
        return found


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if BROWSER is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with Browser() as found:
        yield found


@pytest.fixture(scope="package")
def shown(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Shown]:
    """Make the page of a snapshot, once for all tests."""
    known: dict[Path, Shown] = {}
    folder = tmp_path_factory.mktemp("pages")

    def show(snapshot: Path) -> Shown:
        if snapshot not in known:
            explanation = explain(load_snapshot(snapshot).devices[0], source=snapshot.name, with_picture=True)
            page = folder / f"{snapshot.stem}.html"
            page.write_text(draw_page(describe(explanation)), encoding="utf-8")
            known[snapshot] = Shown(browser, page, explanation)
        return known[snapshot]

    return show
