"""`ullage advise --vary`: the largest value of an option, as the script is and with the changes of each cost added."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ullage
from tests.forked import client

TRAIN = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
options = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(6)]
        self.blocks = nn.ModuleList(layers)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(50):
    x = torch.randn(options.batch_size, 128, 512, device="cuda")
    loss = nn.functional.mse_loss(model(x), x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


RANGE = "--batch-size=16..512:16"


@dataclass(frozen=True)
class Case:
    script: Path
    told: dict[str, Any]
    page: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.told["largest"]
        return rows


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("largest")
    script, page = folder / "train.py", folder / "page.html"
    script.write_text(TRAIN)
    return Case(script, client.call(advised, script, page), page.read_text())


def advised(script: Path, page: Path) -> dict[str, Any]:
    """Plain data: changes have functions of their own, which are not pickled."""
    told = ullage.advise(script, ["--batch-size", "16"], gpu="2GiB", vary=RANGE, html=page, steps=2).to_json()
    plain: dict[str, Any] = json.loads(json.dumps(told))
    return plain


@pytest.mark.by_day(3)
def test_dearer_changes_make_room_for_more(case: Case) -> None:
    assert case.rows[0]["changes"] == []
    assert "time" in [row["cost"] for row in case.rows]
    values = [row["best"] for row in case.rows]
    assert values == sorted(values)
    assert values[0] < values[-1]
    assert not any(change.startswith("accumulate") for row in case.rows for change in row["changes"])


@pytest.mark.by_day(3)
def test_each_value_and_the_next_were_run(case: Case) -> None:
    assert case.told["option"] == "--batch-size"
    assert case.told["best"] is None
    for row in case.rows:
        assert row["next"] == row["best"] + 16 or (row["next"], row["best"]) == (None, 512)
        assert row["interval_bytes"][1] <= case.told["total_memory_bytes"]


@pytest.mark.by_day(3)
def test_the_first_row_is_what_fit_finds(case: Case) -> None:
    arguments = ["--batch-size", "16"]
    found = client.call(ullage.fit, case.script, arguments, gpu="2GiB", vary=RANGE, changes=False, steps=2)
    assert found.largest.best is not None
    assert found.largest.best.value == case.rows[0]["best"]


@pytest.mark.by_day(3)
def test_the_report_names_the_largest(case: Case) -> None:
    first, last = case.rows[0]["best"], max(row["best"] for row in case.rows)
    assert f"BATCH SIZE {first} FITS WITHOUT CHANGES, {last} WITH CHANGES" in case.page
    assert "The largest batch size that fits" in case.page


def test_a_patch_is_of_one_value(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = subprocess.run(
        [sys.executable, "-m", "ullage", "advise", "--gpu", "T4", "--vary", "--bs", "--patch", "a.diff", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "--patch cannot be combined with --vary" in done.stderr
