"""Make the pictures of the README from real runs: `make pictures`."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from ullage.analysis.describe import describe as describe_explanation
from ullage.analysis.explain import explain
from ullage.prediction.describe import describe
from ullage.prediction.script import Request, predict
from ullage.report.page import draw_page
from ullage.report.report import Report
from ullage.report.terminal import draw
from ullage.snapshot.snapshot import load_snapshot

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"


def picture(name: str, title: str, report: Report) -> None:
    """Save what the terminal would show."""
    console = Console(record=True, width=100, highlight=False, file=sys.stdout, force_terminal=True)
    draw(report, console)
    path = FOLDER / f"{name}.svg"
    console.save_svg(str(path), title=title)
    print(path.relative_to(ROOT))


def screenshot(name: str, report: Report, *, height: int) -> None:
    """Photograph the top of a report's page in Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium on this machine (Debian: apt-get install chromium)")
    path = FOLDER / f"{name}.png"
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(draw_page(report), encoding="utf-8")
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
        size = (f"--window-size=1000,{height}", "--virtual-time-budget=8000", "--hide-scrollbars")
        output = (f"--user-data-dir={folder}/browser", f"--screenshot={path}", page.as_uri())
        subprocess.run([browser, *flags, *size, *output], check=True, capture_output=True)
    print(path.relative_to(ROOT))


def predictions() -> None:
    script = Path("examples/train_gpt2.py")
    small = Request(script=script, gpu="RTX 3060", arguments=("--batch-size", "12"))
    title = 'ullage predict examples/train_gpt2.py --gpu "RTX 3060" --batch-size 12'
    picture("predict", title, describe(predict(small)))
    page = Request(script=script, gpu="RTX 3060", picture=True)
    screenshot("page", describe(predict(page)), height=1500)


def explanations() -> None:
    history = load_snapshot(ROOT / "tests" / "snapshot" / "data" / "variable_length_oom.pickle.gz").devices[0]
    report = describe_explanation(explain(history, source="variable_length_oom.pickle.gz", with_picture=True))
    screenshot("explain", report, height=1330)


def main() -> None:
    """Make all of them, or those that are named: predictions, explanations."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for make in (predictions, explanations):
        if make.__name__ in (sys.argv[1:] or [make.__name__]):
            make()


if __name__ == "__main__":
    main()
