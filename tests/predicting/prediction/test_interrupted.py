"""Ctrl-C at any moment of a prediction: one sentence, exit code 130, and nothing of it is left."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shared.commands import SCRIPTS, environment_of, processes_of, slow

pytestmark = pytest.mark.own_process
SAID = "interrupted; no processes or temporary files were left\n"
MARK = "mark"
"""The file that says that a moment has come."""

# In the way of a moment of the parent's: a file for the test, and a while in which the signal comes.
WAIT = f"import pathlib, time; pathlib.Path({MARK!r}).touch(); time.sleep(60)"
LOADER = f"""
import pathlib
import torch
from torch.utils.data import DataLoader, TensorDataset
import tempfile
kept = tempfile.TemporaryDirectory()
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters())
while True:
    for (batch,) in DataLoader(TensorDataset(torch.zeros(64, 8)), batch_size=8, num_workers=2):
        model(batch.cuda()).sum().backward()
        optimizer.step()
        pathlib.Path({MARK!r}).touch()
"""


def interrupted(workplace: Path, words: list[object], has_come: Callable[[], bool], **changes: str) -> tuple[int, str]:
    """Start `python -m ullage`, send SIGINT to it and all in its group at a moment, as a terminal does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ullage", *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=workplace,
        env=environment_of(workplace, **changes),
        start_new_session=True,
    )
    while not has_come():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=900)
    assert processes_of(workplace / "tmp") == []
    return process.returncode, error.splitlines(keepends=True)[-1]  # behind how far it has got


def held_in(workplace: Path, module: str) -> dict[str, str]:
    """A change of the environment with which an import of the command's own is waited for."""
    hook = workplace / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        f"""
import sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            {WAIT}
sys.meta_path.insert(0, Watch())
"""
    )
    return {"PYTHONPATH": str(hook)}


@pytest.mark.parametrize(
    "module",
    [
        pytest.param("typer", id="the command begins"),
        pytest.param("ullage.predicting.prediction.predict", id="what predicts is loaded"),
        pytest.param("torch.optim", id="the script imports torch", marks=slow),
        pytest.param("ullage.report.page.html", id="the report is made"),
    ],
)
def test_while_something_is_loaded(workplace: Path, module: str) -> None:
    words = ["predict", "--gpu", "T4", "--html", "page.html", SCRIPTS / "train.py"]
    is_there = (workplace / MARK).exists
    assert interrupted(workplace, words, is_there, **held_in(workplace, module)) == (130, SAID)
    assert not (workplace / "page.html").exists()


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["loader.py"], id="a script"),
        pytest.param(["--processes", "real", "--", "torchrun", "--nproc-per-node", "2", "loader.py"], id="torchrun"),
    ],
)
def test_while_a_script_runs_that_has_workers_and_a_folder(workplace: Path, words: list[str]) -> None:
    (workplace / "loader.py").write_text(LOADER)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    is_there = (workplace / MARK).exists
    words = ["predict", "--gpu", "T4", "--steps", "1000", *words]
    assert interrupted(workplace, words, is_there, PATH=path) == (130, SAID)
    without_logs_of_torchrun(workplace)


def test_a_command_that_has_told_enough_clears_away_what_it_has_made(workplace: Path) -> None:
    """It is stopped in the middle of its script, whose frames have a folder and a loader's workers."""
    (workplace / "loader.py").write_text(LOADER)
    words = ["-m", "ullage", "predict", "--gpu", "T4", "--", sys.executable, "loader.py"]
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=workplace,
        env=environment_of(workplace),
        timeout=900,
    )
    assert done.returncode == 0, done.stderr


def without_logs_of_torchrun(workplace: Path) -> None:
    """Torchrun keeps the folder of its logs, whoever interrupts it."""
    for logs in (workplace / "tmp").glob("torchelastic_*"):
        shutil.rmtree(logs)
