"""`ullage advise` on real scripts: the advice fits, and the script as it is written by hand needs the same bytes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ullage
from tests.forked import client
from ullage.predicting.changes.change import ChangeCost

TRAIN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(6)]
        self.blocks = nn.ModuleList(layers)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def main():
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(50):
        x = torch.randn(4096, 512, device="cuda")
        y = torch.randn(4096, 512, device="cuda")
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main()
"""


@pytest.fixture(scope="module")
def advised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ullage.Advice]:
    script = tmp_path_factory.mktemp("advise") / "train.py"
    script.write_text(TRAIN)
    patch = script.parent / "a.diff"
    answer = client.call(ullage.advise, script, gpu="T4", total_memory="620MiB", context="100MiB", patch=patch)
    return script, answer


def test_a_script_that_does_not_fit_fits_with_the_cheapest_that_is_enough(
    advised: tuple[Path, ullage.Advice],
) -> None:
    _, answer = advised
    assert answer.base.verdict.value == "does not fit"
    assert answer.best is not None
    assert answer.best.fits
    assert answer.exit_code == 0
    assert answer.best.combination.cost <= ChangeCost.TIME
    assert answer.is_complete


def test_what_is_written_needs_the_bytes_that_were_promised(advised: tuple[Path, ullage.Advice]) -> None:
    """Git applies the patch to a copy, which is predicted on the card itself with nothing changed from outside."""
    script, answer = advised
    assert answer.written is not None
    assert answer.written.is_proved
    assert answer.best is not None
    assert answer.best.prediction is not None
    folder = script.parent / "copy"
    folder.mkdir()
    shutil.copy(script, folder)
    # The diff names the file as git sees it from here: outside of a repository below the current folder.
    text = (script.parent / "a.diff").read_text()
    head = [f"--- a/{script.name}", f"+++ b/{script.name}"]
    (folder / "a.diff").write_text("\n".join([*head, *text.splitlines()[2:], ""]))
    subprocess.run(["git", "apply", "a.diff"], cwd=folder, check=True)
    assert (folder / "train.py").read_text() != TRAIN
    found = client.call(ullage.predict, folder / "train.py", gpu="T4", total_memory="620MiB", context="100MiB")
    assert found.verdict.value == "fits"
    promised = answer.best.prediction
    assert found.peak_allocated_bytes == promised.peak_allocated_bytes
    assert found.peak_reserved_bytes == promised.peak_reserved_bytes


def test_every_change_has_a_row_or_a_reason(advised: tuple[Path, ullage.Advice]) -> None:
    _, answer = advised
    data = json.loads(json.dumps(answer.to_json()))
    told = {each["changes"][0].partition("=")[0] for each in data["changes"]} | {
        each["key"] for each in data["not_made"]
    }
    assert {"checkpoint", "accumulate", "autocast", "fused", "held_over", "eight_bit"} <= told
    assert all(each["why"] for each in data["not_made"])


def test_the_command_says_it_in_a_line_and_writes_the_page(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nx = torch.zeros(1 << 20, device='cuda')\n")
    page = tmp_path / "page.html"
    ran = client.run(
        [sys.executable, "-m", "ullage", "advise", script, "--gpu", "T4", "--html", page],
    )
    assert ran.returncode == 0, ran.stderr
    assert "FITS WITHOUT CHANGES" in ran.stdout
    assert page.exists()


def test_a_card_that_is_not_known_is_one_sentence(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    ran = client.run([sys.executable, "-m", "ullage", "advise", script, "--gpu", "X1"])
    assert ran.returncode == 2
    assert len(ran.stderr.strip().splitlines()) == 1


def test_predict_finds_the_advice_too_where_it_is_asked_and_names_the_command_where_not(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "kept = []\n"
        "for step in range(3):\n"
        "    x = torch.ones(1 << 26, device='cuda', requires_grad=True)\n"
        "    kept.append((x * 2).sum())\n"
        "    kept[-1].backward()\n"
    )
    command = [
        sys.executable,
        "-m",
        "ullage",
        "predict",
        "--gpu",
        "T4",
        "--total-memory",
        "400MiB",
        "--context",
        "1MiB",
    ]
    said = client.run([*command, script])
    assert said.returncode == 1
    assert any(line.startswith("ullage advise ") for line in said.stdout.splitlines())
    both = client.run([*command, "--advise", "--json", script])
    assert both.returncode == 1, both.stderr
    answer = json.loads(both.stdout)
    assert answer["verdict"] == answer["advice"]["verdict"] == "does not fit"
    assert answer["advice"]["changes"]
    assert answer["advice"]["total_memory_bytes"] == 400 << 20
