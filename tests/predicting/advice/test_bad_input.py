"""What is wrong with a question of `ullage advise` is said in one sentence, with its exit code."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ullage
import ullage.api.advise
from tests.forked import client
from ullage.cli.app import app

OF_ONE_OPTION = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
options = parser.parse_args()
import torch
torch.zeros(options.batch_size, 1 << 20, device="cuda")
"""
GOOD = "import torch\nx = torch.zeros(1 << 20, device='cuda')\n"


def ask(folder: Path, text: str | None, *options: str) -> subprocess.CompletedProcess[str]:
    if text is not None:
        (folder / "train.py").write_text(text)
    command = [sys.executable, "-m", "ullage", "advise", "train.py", "--gpu", "T4", *options]
    return client.run(command, cwd=folder)


def said(ran: subprocess.CompletedProcess[str]) -> str:
    """Return what it says beside its progress: one line."""
    assert not ran.stdout
    assert "Traceback" not in ran.stderr
    lines = [line for line in ran.stderr.splitlines() if not line.startswith("ullage: ")]
    assert len(lines) == 1, ran.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "the script train.py does not exist"),
        (("--patch", "missing/a.diff"), "the folder of --patch missing/a.diff does not exist"),
        (("--patch", "."), "--patch . is a folder"),
        (("--patch", "train.py"), "would replace train.py"),
        (("--html", "missing/a.html"), "the folder of --html missing/a.html does not exist"),
    ],
)
def test_wrong_usage_is_said_before_anything_runs(tmp_path: Path, options: tuple[str, ...], text: str) -> None:
    ran = ask(tmp_path, GOOD if options else None, *options)
    assert ran.returncode == 2, ran.stderr
    assert text in said(ran)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_to_is_said_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    ran = ask(tmp_path, GOOD, "--patch", "closed/a.diff")
    assert ran.returncode == 2
    assert "is in a folder where you may not write" in said(ran)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("import torch\nx = torch.zeros(1\n", "SyntaxError"),
        ("import torch\nraise KeyError('tokens')\n", "train.py raised KeyError at line 2"),
        ("import torch\nimport nothing_of_that_name\n", "No module named 'nothing_of_that_name'"),
    ],
)
def test_a_script_that_fails_by_itself_is_exit_code_3(tmp_path: Path, script: str, text: str) -> None:
    ran = ask(tmp_path, script)
    assert ran.returncode == 3, ran.stderr
    assert not ran.stdout
    assert text in ran.stderr
    assert "error: " in ran.stderr
    assert "site-packages/ullage" not in ran.stderr  # the script's own traceback alone


@pytest.mark.parametrize("command", ["advise", "fit"])
def test_an_option_that_the_script_does_not_have_is_not_a_matter_of_its_range(tmp_path: Path, command: str) -> None:
    (tmp_path / "train.py").write_text(OF_ONE_OPTION)
    ran = client.run(
        [sys.executable, "-m", "ullage", command, "train.py", "--gpu", "T4", "--vary", "--bs"], cwd=tmp_path
    )
    assert ran.returncode == 3
    assert "unrecognized arguments: --bs 1" in ran.stderr
    assert ran.stderr.splitlines()[-1] == "(--vary needs an option of the script, and the script does not know --bs)"
    assert "begin higher" not in ran.stderr


def test_json_and_a_page_at_once_and_no_diff(tmp_path: Path) -> None:
    """What goes to standard output is JSON alone; a patch without anything in it is not written, and that is said."""
    ran = ask(tmp_path, GOOD, "--json", "--html", "a.html", "--patch", "a.diff")
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    assert answer["verdict"] == "fits"
    assert all(each["why"] for each in answer["not_made"])
    assert "<html" in (tmp_path / "a.html").read_text()
    assert not (tmp_path / "a.diff").exists()
    assert ran.stderr.splitlines()[-1] == "ullage: a.diff was not written, because the advice does not contain a diff"


def test_an_answer_is_not_lost_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text(GOOD)

    def full(answer: object, patch: Path) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(patch))

    monkeypatch.setattr(ullage.api.advise, "write_patch", full)
    ran = CliRunner().invoke(app, ["advise", str(script), "--gpu", "T4", "--patch", str(tmp_path / "a.diff")])
    assert "FITS WITHOUT CHANGES" in ran.output, repr(ran.exception)
    assert isinstance(ran.exception, OSError)  # of which the command makes a sentence and exit code 2
