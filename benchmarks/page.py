"""How large the page of `ullage explain --html` is, how soon it is drawn, and how long it ever stalls: `make bench`.

A recorded run of tests/snapshots is repeated to 10^4, 10^5 and 10^6 events; and one report is made up whose columns
cannot be compressed, with 10^5 blocks alive at once. Each page is opened in Chromium at 1200 and 400 pixels, and used
as people do: pointed at, zoomed, stepped through, filtered, searched, each three times. Exits 1 past a bound of size.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from figure import Measured
from snapshot import make

from ullage.recorded.snapshot.snapshot import load_snapshot
from ullage.report.blocks import BlockHistory, Facet, LifeColumns, SegmentColumns, StackColumns
from ullage.report.page.html import draw_page
from ullage.report.report import Report, Tone

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from browser import BROWSER, Browser  # noqa: E402

MIB = 1 << 20
WIDTHS = (1200, 400)
BLOCKS = 400_000
ALIVE = 100_000

# What people do, each as JavaScript on the explorer `e` of the page.
DEEDS = {
    "step to the next event": "e.$('next').click()",
    "show another part": "e.$('behind').click()",
    "zoom in": "e.$('in').click()",
    "zoom out": "e.$('out').click()",
    "pan": "e.$('right').click()",
    "the whole run": "e.choosePart(0)",
    "only blocks of 1 MiB": "e.$('smallest').value = 2; e.$('smallest').dispatchEvent(new Event('change'))",
    "blocks of any size": "e.$('smallest').value = 0; e.$('smallest').dispatchEvent(new Event('change'))",
    "search": "e.$('find').value = 'work'; e.$('find').dispatchEvent(new Event('input'))",
    "search for nothing": "e.$('find').value = ''; e.$('find').dispatchEvent(new Event('input'))",
    "another axis": "e.$('axis').selectedIndex ^= 1; e.$('axis').dispatchEvent(new Event('change'))",
}


def random_report() -> Report:
    """Blocks of random sizes, lives, addresses and stacks: what compression cannot make small."""
    rng = np.random.default_rng(0)
    born = np.sort(rng.integers(1, 2 * BLOCKS, BLOCKS))
    life = rng.integers(1, 4 * ALIVE, BLOCKS)
    size = rng.integers(1, 4000, BLOCKS) * 512
    lengths = rng.integers(10, 60, 3000)
    starts = np.append(0, np.cumsum(lengths))
    texts = tuple(f"/project/part_{n % 97}/module_{n}.py:{n} function_{n}" for n in range(5000))
    blocks = BlockHistory(
        title="Memory over the run",
        event=np.arange(2 * BLOCKS),
        time_us=np.cumsum(rng.integers(0, 300, 2 * BLOCKS)),
        blocks=LifeColumns(
            born=born,
            life=life,
            wait=np.zeros(BLOCKS, np.int64),
            size_bytes=size,
            address=(0x7F << 40) + np.arange(BLOCKS) * 4096 * 512,
            stack=rng.integers(0, 3000, BLOCKS),
        ),
        facets=(
            Facet(title="your line", labels=texts[:500], of_block=rng.integers(0, 500, BLOCKS)),
            Facet(title="stream", labels=("one", "other"), of_block=rng.integers(0, 2, BLOCKS)),
        ),
        segments=SegmentColumns(
            born=np.zeros(100, np.int64),
            life=np.full(100, 2 * BLOCKS),
            address=(0x7F << 40) + np.arange(100) * (BLOCKS // 100) * 4096 * 512,
            size_bytes=np.full(100, (BLOCKS // 100) * 4096 * 512),
            is_page=np.zeros(100, np.int64),
            kind=np.zeros(100, np.int64),
            kinds=("large blocks",),
        ),
        stacks=StackColumns(
            starts=starts,
            frames=rng.integers(0, 5000, starts[-1]),
            texts=texts,
            is_own=tuple(n % 3 == 0 for n in range(5000)),
        ),
        step_ends=tuple(range(10_000, 2 * BLOCKS, 10_000)),
        moment=BLOCKS,
        moment_label="the peak",
    )
    return Report(headline="A BENCHMARK", tone=Tone.PLAIN, subject="", sentence="", sections=(), pictures=(blocks,))


def pages(folder: Path) -> Iterator[tuple[str, Path]]:
    """Pages of recorded runs and of a made-up one, with their names."""
    small = ROOT / "tests" / "snapshots" / "normal.pickle.gz"
    large = folder / "large.pickle"
    for megabytes in (0, 5, 62):
        if megabytes:
            make(large, megabytes)
        file = large if megabytes else small
        page = folder / f"page_{megabytes}.html"
        command = [sys.executable, "-m", "ullage", "explain", str(file), "--html", str(page)]
        subprocess.run(command, check=True, capture_output=True)
        yield f"{len(load_snapshot(file).devices[0]):,} events", page
    page = folder / "random.html"
    page.write_text(draw_page(random_report()))
    yield f"{BLOCKS:,} random blocks, {ALIVE:,} alive at once", page


def stall(browser: Browser) -> float:
    """The longest time in ms for which the page did not react since the last question; below 50 it is not told."""
    return float(browser.value("new Promise((answer) => setTimeout(() => answer(Math.max(0, ...stalls.splice(0)"
                               ".map(([, ms]) => ms))), 60))"))  # fmt: skip


def point(browser: Browser) -> None:
    """Move the pointer over the blocks."""
    x, y, width, height = browser.value(
        "(({x, y, width, height}) => [x, y, width, height])(document.querySelector('.strata').getBoundingClientRect())"
    )
    for share in np.linspace(0.2, 0.95, 30):
        browser.mouse("move", x + share * width, y + (1 - share / 2) * height)


def deeds(browser: Browser) -> dict[str, float]:
    """The longest stall in ms that each thing led to that people do; of three times the least, for a busy machine."""
    found: dict[str, list[float]] = {}
    for _ in range(3):
        point(browser)
        found.setdefault("point at blocks", []).append(stall(browser))
        for name, deed in DEEDS.items():
            browser.value(f"(() => {{ const e = document.querySelector('section.blocks').explorer; {deed}; }})()")
            browser.drawn()
            found.setdefault(name, []).append(stall(browser))
    return {name: min(stalls) for name, stalls in found.items()}


def measurements(name: str, page: Path) -> Iterator[Measured]:
    yield Measured(f"page of {name}", page.stat().st_size / 1e6, "MB", 10.0)
    for width in WIDTHS:
        with Browser() as browser:
            began = time.perf_counter()
            browser.open(page, width=width)
            browser.wait("document.querySelector('section.blocks').dataset.drawn")
            yield Measured(f"  first picture at {width} px", time.perf_counter() - began, "s", 2.0)
            browser.drawn()
            yield Measured("    longest stall while it is opened", stall(browser), "ms", 100.0, 0)
            browser.value("document.querySelector('.strata').scrollIntoView({block: 'center'})")
            worst = max(deeds(browser).items(), key=lambda deed: deed[1])
            yield Measured(f"    longest stall in use ({worst[0]})", worst[1], "ms", 100.0, 0)
            wide = browser.value("document.documentElement.scrollWidth - innerWidth")
            yield Measured("    runs out of the window by", wide, "px", 0.0, 0)
            yield Measured("    messages and requests", len(browser.errors) + len(browser.requests), "", 0.0, 0)


def main() -> None:
    if BROWSER is None:
        print("     pages are left out: no Chromium on this machine (Debian: apt-get install chromium)")
        return
    kept = True
    with tempfile.TemporaryDirectory(prefix="ullage-") as folder:
        for name, page in pages(Path(folder)):
            for measured in measurements(name, page):
                print(measured, flush=True)
                kept = kept and measured.kept
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
