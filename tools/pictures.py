"""Make the pictures of the README from real runs: `make pictures`."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from ullage.prediction.describe import describe
from ullage.prediction.script import Request, predict
from ullage.report.page import draw_page
from ullage.report.terminal import draw

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"


def picture(name: str, title: str, request: Request) -> None:
    """Run a prediction and save what the terminal would show."""
    console = Console(record=True, width=100, highlight=False, file=sys.stdout, force_terminal=True)
    draw(describe(predict(request)), console)
    path = FOLDER / f"{name}.svg"
    console.save_svg(str(path), title=title)
    print(path.relative_to(ROOT))


def screenshot(name: str, request: Request) -> None:
    """Run a prediction and photograph the top of its page in Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium on this machine (Debian: apt-get install chromium)")
    path = FOLDER / f"{name}.png"
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(draw_page(describe(predict(request))), encoding="utf-8")
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
        size = ("--window-size=1000,1500", "--virtual-time-budget=8000", "--hide-scrollbars")
        output = (f"--user-data-dir={folder}/browser", f"--screenshot={path}", page.as_uri())
        subprocess.run([browser, *flags, *size, *output], check=True, capture_output=True)
    print(path.relative_to(ROOT))


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    script = Path("examples/train_gpt2.py")
    picture(
        "predict",
        'ullage predict examples/train_gpt2.py --gpu "RTX 3060" --batch-size 12',
        Request(script=script, gpu="RTX 3060", arguments=("--batch-size", "12")),
    )
    screenshot("page", Request(script=script, gpu="RTX 3060", picture=True))


if __name__ == "__main__":
    main()
