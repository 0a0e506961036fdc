"""The page in a real browser, with no network: drawn, without an error, alive under the pointer."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Predict, slow
from .test_fit import fit

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=8000"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--dump-dom"),
)
# Put into a copy of the page: points at a value, zooms, and writes what happened where the test can read it.
ALIVE = """
<script>
const first = document.getElementById("picture-0");
const before = first.layout.yaxis.range.join();
Plotly.Fx.hover(first, [POINT]);
const hover = first.querySelectorAll(".hoverlayer *").length;
const box = first.querySelector(".nsewdrag").getBoundingClientRect();
const at = (kind, x, y) => {
  const there = {clientX: box.x + x * box.width, clientY: box.y + y * box.height};
  const target = kind === "mousedown" ? ".nsewdrag" : ".dragcover";
  const event = new MouseEvent(kind, {bubbles: true, buttons: 1, ...there});
  (document.querySelector(target) || document).dispatchEvent(event);
};
at("mousedown", 0.2, 0.2);
at("mousemove", 0.6, 0.7);
at("mouseup", 0.6, 0.7);
setTimeout(() => {
  const drawn = (picture) => picture.querySelectorAll("path, .point").length;
  const kinds = [...document.querySelectorAll(".picture")].map(drawn);
  document.body.dataset.alive = JSON.stringify({hover, zoomed: first.layout.yaxis.range.join() !== before, kinds});
}, 2000);
</script>
"""


def browse(page: Path, workplace: Path) -> tuple[str, str]:
    """Return the page's document after its scripts have run, and what the browser's console said."""
    done = subprocess.run(
        [str(BROWSER), *FLAGS, f"--user-data-dir={workplace / 'browser'}", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    shutil.rmtree(workplace / "browser", ignore_errors=True)
    return done.stdout, "\n".join(console)


def assert_alive(page: Path, workplace: Path, *, point: str, pictures: int) -> None:
    """The page is drawn without an error and without a network, and a picture answers to the pointer."""
    assert page.stat().st_size < 6 << 20
    text = page.read_text()
    own = re.sub(r"<script>/\*\*.*?</script>", "", text, flags=re.DOTALL)  # plotly.js has addresses of its own
    assert not re.findall(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", own)
    probe = workplace / "probe.html"
    probe.write_text(text.replace("</body>", ALIVE.replace("POINT", point) + "</body>"))
    document, console = browse(probe, workplace)
    assert console == ""
    alive = re.search(r'data-alive="([^"]*)"', document)
    assert alive, document[-500:]
    said = alive[1].replace("&quot;", '"')
    assert '"zoomed":true' in said
    assert re.search(r'"hover":[1-9]', said)
    kinds = [int(number) for number in re.search(r'"kinds":\[([\d,]*)\]', said)[1].split(",")]
    assert len(kinds) == pictures
    assert all(number > 3 for number in kinds), kinds


@needs_browser
def test_a_prediction_is_drawn_without_a_network(predict: Predict, workplace: Path) -> None:
    ended = predict("train.py", "--html", "page.html")
    assert ended.code == 0, ended.error
    page = workplace / "page.html"
    assert_alive(page, workplace, point="{curveNumber: 0, pointNumber: 3}", pictures=3)
    assert "FITS" in page.read_text()


@needs_browser
@slow
def test_a_frontier_is_drawn(workplace: Path) -> None:
    """Curve 0 is the line, curve 1 what fits."""
    vary = ("--vary", "--batch-size=8..16:8", "--vary", "--width=64..128")
    ended = fit(workplace, *vary, "--no-changes", "--html", "page.html")
    assert ended.code == 0, ended.error
    assert_alive(workplace / "page.html", workplace, point="{curveNumber: 1, pointNumber: 0}", pictures=4)


@needs_browser
def test_an_explanation_is_drawn(workplace: Path) -> None:
    file = Path(__file__).parents[1] / "snapshot" / "data" / "variable_length_oom.pickle.gz"
    line = [sys.executable, "-m", "ullage", "explain", str(file), "--html", "page.html"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=workplace, timeout=60)
    assert done.returncode == 0, done.stderr
    assert_alive(workplace / "page.html", workplace, point="{curveNumber: 0, pointNumber: 3}", pictures=3)


def test_a_page_that_cannot_be_written_is_told_before_the_run(predict: Predict) -> None:
    ended = predict("train.py", "--html", "no/where.html")
    assert (ended.code, "the folder of --html no/where.html does not exist; make it first" in ended.error) == (2, True)
