"""Make the pictures of the README from real runs: `make pictures`."""

import sys
from pathlib import Path

from rich.console import Console

from ullage.prediction.describe import describe
from ullage.prediction.script import Request, predict
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


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    script = Path("examples/train_gpt2.py")
    picture(
        "predict",
        'ullage predict examples/train_gpt2.py --gpu "RTX 3060" --batch-size 12',
        Request(script=script, gpu="RTX 3060", arguments=("--batch-size", "12")),
    )


if __name__ == "__main__":
    main()
