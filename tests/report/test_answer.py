"""An answer prints as its command does, shows in a notebook, and has a short repr."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ullage
from ullage.report.answer import Answer

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
OOM = SNAPSHOTS / "variable_length_oom.pickle.gz"
TEXT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB"


def printed(*words: str | Path) -> str:
    environment = {**os.environ, "COLUMNS": "100"}
    command = [sys.executable, "-m", "ullage", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(TEXT)
    return path


def test_it_prints_what_the_command_prints(monkeypatch: pytest.MonkeyPatch, text: Path) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert str(ullage.explain(OOM)) == printed("explain", OOM)
    assert str(ullage.explain(text)) == printed("explain", text)
    assert str(ullage.tune(OOM)) == printed("tune", OOM)
    before, after = SNAPSHOTS / "normal.pickle.gz", SNAPSHOTS / "eval_with_grad.pickle.gz"
    assert str(ullage.diff(before, after)) == printed("diff", before, after)


def test_its_repr_is_one_short_line(text: Path) -> None:
    for answer in (ullage.explain(OOM), ullage.explain(text), ullage.diagnose()):
        assert re.fullmatch(r"<ullage\.\w+: .{3,200}>", repr(answer)), repr(answer)


def test_a_notebook_shows_it() -> None:
    html = ullage.explain(OOM)._repr_html_()
    assert html.startswith("<pre")
    assert "<script" not in html
    assert str(ullage.explain(OOM)).split()[0] in html


def test_every_answer_is_one() -> None:
    answers = ("Prediction", "Fit", "LayoutFit", "Advice", "Explanation", "FleetExplanation", "Tuning", "Difference")
    for name in (*answers, "Diagnosis"):
        kind = getattr(ullage, name)
        assert issubclass(kind, Answer)
        assert kind.__repr__ is Answer.__repr__
        assert callable(__import__(kind.described_in, fromlist=["describe"]).describe)
