"""Put a real screen of `ullage watch` into docs/watch.md, from a run on an emulated card (needs tmux).

python tools/watch_screen.py
"""

import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "watch.md"
SCRIPT = """\
import random
import time

import torch
from torch import nn

random.seed(1)
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(1024, 16, batch_first=True), 12).cuda()
optimizer = torch.optim.AdamW(model.parameters())
outputs = []
for step in range(2000):
    length = random.randint(100, 700)
    output = model(torch.randn(8, length, 1024, device="cuda"))
    output.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    outputs.append(output[:, 0].detach().clone())
    time.sleep(0.05)
"""


def main() -> None:
    """Run, wait until there is something to see, and write it."""
    with tempfile.TemporaryDirectory() as around:
        folder = Path(around) / "project"
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT)
        run = [sys.executable, "-m", "ullage", "run", "--gpu", "RTX 3060", "--folder", "run", "--quiet", "train.py"]
        with subprocess.Popen(run, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
            try:
                shown = screen_of(folder, wait_for="leak at step")
            finally:
                running.terminate()
    text = DOCUMENT.read_text()
    fresh = f"<!-- screen -->\n```\n{shown}\n```\n<!-- end -->"
    DOCUMENT.write_text(re.sub(r"<!-- screen -->.*<!-- end -->", lambda _: fresh, text, flags=re.DOTALL))
    print(shown)


def screen_of(folder: Path, *, wait_for: str) -> str:
    """Return what a terminal of 80x24 shows once a text is on it."""
    tmux = ["tmux", "-u", "-f", "/dev/null", "-S", str(folder / "tmux")]
    command = shlex.join([sys.executable, "-m", "ullage", "watch", "run"])
    while not list(folder.glob("run/*.live")):
        time.sleep(0.1)
    subprocess.run([*tmux, "new-session", "-d", "-x", "80", "-y", "24", "-c", str(folder), command], check=True)
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            time.sleep(0.5)
            shown = subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout
            if wait_for in shown:
                return shown.rstrip("\n")
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
    sys.exit(f"{wait_for!r} did not come up; at last it was\n{shown}")


if __name__ == "__main__":
    main()
