"""Make the pictures of the README from real runs: `make pictures`."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import watch_screen
from browser import BROWSER, Browser
from rich.console import Console
from rich.text import Text

import docs
from ullage.api.fit_layout import fit_layout
from ullage.explaining.analysis.describe import describe as describe_explanation
from ullage.explaining.analysis.explain import explain
from ullage.predicting.advice.advice import advise
from ullage.predicting.advice.describe import describe as describe_advice
from ullage.predicting.layouts.describe import describe as describe_layouts
from ullage.predicting.prediction.description.describe import describe
from ullage.predicting.prediction.predict import Request, predict
from ullage.recorded.snapshot.snapshot import load_snapshot
from ullage.report.page.html import draw_page
from ullage.report.report import Report
from ullage.report.terminal import draw

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
SPINNER = re.compile("[\u2800-\u28ff]")
"""What turns while something is computed."""


def picture(name: str, title: str, report: Report) -> None:
    """Save what the terminal would show."""
    console = Console(record=True, width=100, highlight=False, file=sys.stdout, force_terminal=True)
    draw(report, console)
    path = FOLDER / f"{name}.svg"
    console.save_svg(str(path), title=title)
    print(path.relative_to(ROOT))


def screenshot(name: str, report: Report, *, height: int) -> None:
    """Photograph the top of a report's page in Chromium."""
    if BROWSER is None:
        sys.exit("no Chromium on this machine (Debian: apt-get install chromium)")
    path = FOLDER / f"{name}.png"
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        page = Path(folder) / "page.html"
        page.write_text(draw_page(report), encoding="utf-8")
        browser.open(page, width=1000, height=height)
        browser.drawn()
        browser.wait("[...document.querySelectorAll('.picture')].every((each) => each.querySelector('svg'))")
        browser.picture(path)
    print(path.relative_to(ROOT))


def predictions() -> None:
    script = Path("examples/train_gpt2.py")
    small = Request.of(script, ("--batch-size", "12"), gpu="RTX 3060", steps=3)
    title = 'ullage predict examples/train_gpt2.py --gpu "RTX 3060" --batch-size 12'
    picture("predict", title, describe(predict(small)))
    page = Request.of(script, gpu="RTX 3060", steps=3, picture=True)
    screenshot("page", describe(predict(page)), height=1500)


def advices() -> None:
    """What each change needs beside the card's line: as docs/advise.md asks."""
    request = Request.of("examples/train_gpt2.py", ("--batch-size", "16"), gpu="RTX 3060", steps=3, draws=1)
    screenshot("advise", describe_advice(advise(request)), height=1130)


def explanations() -> None:
    history = load_snapshot(ROOT / "tests" / "snapshots" / "variable_length_oom.pickle.gz").devices[0]
    report = describe_explanation(explain(history, source="variable_length_oom.pickle.gz", with_picture=True))
    screenshot("explain", report, height=1760)


def layouts() -> None:
    """Search the layouts of a 7B model on 64 cards: the text, and the page's picture."""
    options = [f"{axis}=--{axis}" for axis in ("dp", "tp", "pp", "cp")]
    found = fit_layout(
        ROOT / "benchmarks" / "layouts" / "llama.py",
        ("--size", "7b", "--length", "4096"),
        gpu="H100",
        cards=64,
        layout="dp*tp*pp*cp",
        layout_option=options,
        most=("tp=4", "pp=2", "cp=1"),
        vary="--micro-batch=1..8",
        accumulate=8,
        item_tokens=4096,
        picture=BROWSER is not None,
    )
    report = replace(describe_layouts(found), subject="llama.py --size 7b on 64 x H100")
    picture(
        "layouts", "ullage fit llama.py --gpu H100 --cards 64 --layout dp*tp*pp*cp --vary --micro-batch=1..8", report
    )
    if BROWSER is not None:
        screenshot("layouts_page", report, height=900)


def text_picture(name: str, title: str, text: Text, *, width: int) -> None:
    """Save what a terminal has shown."""
    console = Console(record=True, width=width, highlight=False, file=sys.stdout, force_terminal=True)
    console.print(text)
    path = FOLDER / f"{name}.svg"
    console.save_svg(str(path), title=title)
    print(path.relative_to(ROOT))


def shown_by(command: Sequence[str], *, width: int) -> list[str]:
    """Run a command on a terminal of its own, and return the lines that it shows, with their colours."""
    with tempfile.TemporaryDirectory() as around:
        folder = docs.workplace(Path(around))
        ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
        kept = {
            key: value for key, value in docs.environment(Path(around)).items() if key not in ("NO_COLOR", "COLUMNS")
        }
        environment = {**kept, "TERM": "xterm-256color"}
        with subprocess.Popen(command, cwd=folder, env=environment, stdin=its, stdout=its, stderr=its):
            os.close(its)
            found = b""
            try:
                while part := os.read(ours, 1 << 16):
                    found += part
            except OSError:
                pass  # so the end of a terminal is told on Linux
        os.close(ours)
        lines = docs.plain(found.decode(), folder).replace("\r\n", "\n").split("\n")
        return [line for line in lines if not SPINNER.search(line)]


def runs() -> None:
    """A run that fails, with its verdict; the middle of the report is left out."""
    script = "tests/running/supervision/scripts/pieces.py"
    command = ["ullage", "run", "--gpu", "RTX 2080 Ti", "--folder", "run", script]
    lines = shown_by(["bash", "-c", '"$@"', "bash", *command], width=110)
    error = next(n for n, line in enumerate(lines) if "OutOfMemoryError" in line)
    rest = next(n for n, line in enumerate(lines) if "Lines of your code that held the " in line)
    end = next(n for n, line in enumerate(lines) if re.search("ullage: .*report.html", line))
    chosen = [lines[0], *lines[1:3], "  ...", *lines[error:rest], "  ...", "", *lines[end:]]
    title = "ullage run --gpu 'RTX 2080 Ti' pieces.py"
    text_picture("run", title, Text.from_ansi("\n".join(chosen).rstrip()), width=110)


def screens() -> None:
    """The live view, from the run that docs/watch.md shows; it is renewed there too."""
    watch_screen.main()
    text = watch_screen.DOCUMENT.read_text()
    screen = re.search(r"<!-- screen -->\n```\n(.*?)\n```\n<!-- end -->", text, re.DOTALL)
    assert screen is not None
    text_picture("watch", "ullage watch", Text(screen[1]), width=80)


def main() -> None:
    """Make all of them, or those that are named: predictions, advices, explanations, layouts, runs, screens."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for make in (predictions, advices, explanations, layouts, runs, screens):
        if make.__name__ in (sys.argv[1:] or [make.__name__]):
            make()


if __name__ == "__main__":
    main()
