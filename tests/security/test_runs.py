"""What real commands leave and tell of a command line full of secrets, and who can read it."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.forms import forms
from tests.security.users import as_nobody

FORMS = list(forms())
TRAIN = """
import sys
import torch
torch.nn.Linear(4, 4).cuda()
torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
"""
FITS = """
import torch
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
"""
ENVIRONMENT = {
    "HF_TOKEN": "SECRETenv1",
    "AWS_SECRET_ACCESS_KEY": "SECRETenv2",
    "WANDB_API_KEY": "SECRETenv3",
    "TORCH_HUB_TOKEN": "SECRETenv4",
    "CUDA_MY_PASSWORD": "SECRETenv5",
    "NCCL_AUTHX": "SECRETenv6",
    "TORCH_HOME": "https://user:SECRETenv7@host/x",
    "PYTORCH_URL": "https://h/x?X-Amz-Signature=SECRETenv8",
    "TORCH_PASS": "SECRETenv9",
    "NCCL_DEBUG": "token=SECRETenv10",
}


def _ullage(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ullage", *words],
        cwd=folder,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=900,
        umask=0,
    )


def _secrets_in(content: bytes) -> set[bytes]:
    return set(re.findall(rb"SECRET(?:env\d+|\d{4}X7Qz)", content))


@pytest.fixture(scope="module")
def run() -> Iterator[tuple[Path, str]]:
    """A run that ends by an error of memory, with every form on its command line; what it printed.

    In a folder that all users can enter, of a user who takes no right away from anybody (umask 0).
    """
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="ullage-open-"))
    folder.chmod(0o755)
    (folder / "train.py").write_text(TRAIN)
    words = [word for form in FORMS for word in form.words]
    ended = _ullage(folder, "run", "--gpu", "T4", "--folder", "runs/out", "--csv", "out.csv", "train.py", *words)
    assert "OutOfMemoryError" in ended.stderr
    yield folder, ended.stdout + ended.stderr
    shutil.rmtree(folder)


def test_no_file_of_a_run_has_a_secret(run: tuple[Path, str]) -> None:
    folder, printed = run
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "train.py"]
    names = {path.name for path in files}
    assert {"environment.json", "report.html", "report.txt", "snapshot.pickle", "out.csv"} < names
    assert any(name.endswith(".live") for name in names)
    assert {path.name: _secrets_in(path.read_bytes()) for path in files} == {name: set() for name in names}
    assert not _secrets_in(printed.encode())
    [record] = folder.rglob("environment.json")
    assert "train.py" in " ".join(json.loads(record.read_bytes())["command"])


def test_another_user_can_read_nothing_of_a_run(run: tuple[Path, str]) -> None:
    """Neither its folder nor any file of it, whose names he may know; a file that the user has named is as of `cp`."""
    folder, _ = run
    made = [folder / "runs", *(folder / "runs").rglob("*")]
    assert len(made) >= 8
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()} == {0o600}
    if os.getuid() == 0:
        as_nobody(lambda: [_cannot_read(path) for path in made])
    assert (folder / "out.csv").stat().st_mode & stat.S_IROTH


def _cannot_read(path: Path) -> None:
    with pytest.raises(PermissionError):
        os.open(path, os.O_RDONLY)


@pytest.mark.parametrize(
    "words", [["watch", "runs/out", "--once"], ["watch", "runs/out", "--once", "--json"], ["explain", "runs/out"]]
)
def test_no_answer_about_a_run_has_a_secret(run: tuple[Path, str], words: list[str]) -> None:
    told = _ullage(run[0], *words)
    assert told.returncode == 0, told.stderr
    assert "out of memory" in told.stdout.lower() or "train.py" in told.stdout
    assert not _secrets_in((told.stdout + told.stderr).encode())


@pytest.mark.parametrize(
    "command",
    [
        ["predict"],
        pytest.param(
            ["fit", "--vary", "--batch-size=2..2"],
            marks=pytest.mark.skipif("ULLAGE_SLOW" not in os.environ, reason="ULLAGE_SLOW=1 runs it"),
        ),
    ],
)
def test_no_page_of_a_prediction_has_a_secret(tmp_path: Path, command: list[str]) -> None:
    """The page and the JSON have the script's arguments, and are made to be shown."""
    (tmp_path / "tiny.py").write_text(FITS)
    words = [word for form in FORMS for word in form.words]
    told = _ullage(tmp_path, *command, "--gpu", "T4", "--html", "p.html", "--json", "tiny.py", "--", *words)
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["arguments"]
    assert not _secrets_in(told.stdout.encode())
    assert not _secrets_in((tmp_path / "p.html").read_bytes())
