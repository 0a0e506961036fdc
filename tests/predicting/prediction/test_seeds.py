"""Further seeds of the drawn values: what fails with one loses no verdict, and all that is told is of one run."""

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forked import client
from tests.golden.test_report import FITS
from tests.shared.fresh import USUAL
from ullage.base.errors import ScriptError, ValuesError
from ullage.predicting.prediction.data.prediction import HostRead, Prediction, Verdict
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.several import draws

DRAWN = HostRead(file="train.py", line=3, op="topk", count=1, bytes=8, kind="shape", certainty="drawn")
GIB = 1 << 30


def request_for(tmp_path: Path, *, snapshot: Path | None = None) -> Request:
    """Return a request of three draws, from seed 5 on."""
    script = tmp_path / "train.py"
    script.write_text("")
    return Request.of(script, gpu="T4", draws=3, values="on", values_seed=5, snapshot=snapshot)


def predicting(
    monkeypatch: pytest.MonkeyPatch, ends: dict[int, int | ScriptError], *, snapshot_error: str | None = None
) -> None:
    """Have each seed end with a peak of so many GiB, or with an error."""

    def predict(request: Request, *, progress: object = None, cancelled: Callable[[], bool]) -> Prediction:
        del progress, cancelled
        seed = request.values.seed
        end = ends[seed]
        if isinstance(end, ScriptError):
            raise end
        if request.snapshot is not None and (seed == 5 or snapshot_error is None):
            request.snapshot.write_text(f"of seed {seed}")
        return dataclasses.replace(
            FITS,
            reads=[DRAWN],
            values=dataclasses.replace(FITS.values, seed=seed),
            peak_reserved_bytes=end * GIB,
            interval_bytes=(end * GIB, end * GIB + 1),
            snapshot_error=None if seed == 5 else snapshot_error,
            notes=[],
        )

    monkeypatch.setattr(draws, "predict", predict)


def test_a_seed_that_fails_loses_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval is of those that ran, and one sentence says how many."""
    error = ScriptError("train.py raised FileExistsError: 'out'\nTraceback (most recent call last):")
    predicting(monkeypatch, {5: 2, 6: error, 7: 2})
    found = draws.predict_with_draws(request_for(tmp_path))
    assert found.verdict is Verdict.FITS
    assert found.interval_bytes[0] <= 2 * GIB
    assert found.interval_bytes[1] >= 2 * GIB
    assert [each.seed for each in found.draws] == [5, 7]
    assert found.notes == ["2 of 3 seeds ran; with seed 6 the script failed: train.py raised FileExistsError: 'out'"]


def test_all_others_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first's figures stay, as those of one draw."""
    error = ScriptError("FileExistsError: 'out'")
    predicting(monkeypatch, {5: 2, 6: error, 7: error})
    found = draws.predict_with_draws(request_for(tmp_path))
    assert found.verdict is Verdict.FITS
    assert found.interval_bytes == (2 * GIB, 2 * GIB + 1)
    assert [each.seed for each in found.draws] == [5]
    assert found.notes == [
        "1 of 3 seeds ran, so the range comes from one run; with seed 6 the script failed: FileExistsError: 'out'"
    ]


def test_a_failure_that_values_may_have_caused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no verdict then, and the reason says why; it counts before others."""
    values = ValuesError("IndexError: out of range\nBefore this error, the script read values that an emulated GPU ...")
    predicting(monkeypatch, {5: 2, 6: ScriptError("FileExistsError: 'out'"), 7: values})
    found = draws.predict_with_draws(request_for(tmp_path))
    assert found.verdict is Verdict.UNKNOWN
    assert found.reason == (
        "the script fails with random values of seed 7, possibly because of these values: IndexError: out of range"
    )
    assert found.peak_reserved_bytes == 2 * GIB


def test_who_cancels_gets_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no failure of a seed."""
    cancelled = threading.Event()
    error = ScriptError("the run of train.py was cancelled")
    predicting(monkeypatch, {5: 2, 6: error, 7: error})
    with pytest.raises(ScriptError, match="cancelled"):
        draws.predict_with_draws(
            request_for(tmp_path), progress=lambda text: cancelled.set(), cancelled=cancelled.is_set
        )


@pytest.mark.parametrize(("ends", "expected"), [({5: 2, 6: 4, 7: 3}, 6), ({5: 4, 6: 2, 7: 3}, 5)])
def test_the_snapshot_is_of_the_run_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: dict[int, int | ScriptError], expected: int
) -> None:
    """It is the fullest's, as the figures are, and nothing else is left behind."""
    (tmp_path / "out").mkdir()
    snapshot = tmp_path / "out" / "snapshot.pickle"
    predicting(monkeypatch, ends)
    found = draws.predict_with_draws(request_for(tmp_path, snapshot=snapshot))
    assert found.values.seed == expected
    assert found.snapshot_error is None
    assert snapshot.read_text() == f"of seed {expected}"
    assert list(snapshot.parent.iterdir()) == [snapshot]


def test_a_snapshot_that_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run's does not stand in for it."""
    (tmp_path / "out").mkdir()
    snapshot = tmp_path / "out" / "snapshot.pickle"
    predicting(monkeypatch, {5: 2, 6: 4, 7: 3}, snapshot_error="No space left on device")
    found = draws.predict_with_draws(request_for(tmp_path, snapshot=snapshot))
    assert found.snapshot_error == "No space left on device"
    assert list(snapshot.parent.iterdir()) == []


SCRIPT = """
import os, torch
layer = torch.nn.Linear(16, 4).cuda()
chosen = layer(torch.randn(64, 16, device="cuda")).topk(2).indices
rows = int((chosen == 0).sum())
kept = torch.zeros(rows, 1 << 16, device="cuda")
os.mkdir("out")
"""


def test_a_script_that_makes_a_folder(tmp_path: Path) -> None:
    """The runs of further seeds find it there; the first one's verdict and figures are told."""
    (tmp_path / "makes_a_folder.py").write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "ULLAGE_"))}
    done = client.run(
        [sys.executable, "-m", "ullage", "predict", "makes_a_folder.py", "--gpu", "T4", "--draws", "3", "--json"],
        cwd=tmp_path,
        env=environment | USUAL,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["verdict"] == "fits"
    assert [each["seed"] for each in told["draws"]] == [0]
    assert any(
        note.startswith("1 of 3 seeds ran, so the range") and "FileExistsError" in note for note in told["notes"]
    )
