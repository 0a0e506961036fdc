"""`ullage advise` that is interrupted: it shows what is known so far, and leaves no process and no file."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.predicting.advice.test_advise import TRAIN
from tests.shared.commands import environment_of, processes_of

MARKED = "from pathlib import Path\nPath(__file__).with_suffix('.begun').touch()\n"
CARD = ("--gpu", "T4", "--total-memory", "620MiB", "--context", "100MiB")


def to_the_parent(process: subprocess.Popen[str]) -> None:
    """As `kill -INT` does."""
    process.send_signal(signal.SIGINT)


def to_the_group(process: subprocess.Popen[str]) -> None:
    """As Ctrl-C on a terminal does."""
    os.killpg(process.pid, signal.SIGINT)


def begun(workplace: Path, *options: str) -> subprocess.Popen[str]:
    script = workplace / "train.py"
    script.write_text(MARKED + TRAIN)
    return subprocess.Popen(
        [sys.executable, "-m", "ullage", "advise", "train.py", *CARD, "--patch", "a.diff", *options],
        cwd=workplace,
        env=environment_of(workplace),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Read what it says of its progress until that has a text in it."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"it ended without saying {text!r}")


@pytest.mark.parametrize("send", [to_the_parent, to_the_group])
def test_in_the_first_runs_there_is_nothing_to_show(
    workplace: Path, send: Callable[[subprocess.Popen[str]], None]
) -> None:
    process = begun(workplace)
    while not (workplace / "train.begun").exists():  # the script's process runs it
        assert process.poll() is None
        time.sleep(0.05)
    send(process)
    out, error = process.communicate()
    assert process.returncode == 130, error
    assert out == ""
    assert error.splitlines()[-1] == "interrupted; no processes or temporary files were left"
    assert "Traceback" not in error
    assert processes_of(workplace / "tmp") == []
    assert sorted(each.name for each in workplace.iterdir() if each.name != "inductor") == [
        "tmp",
        "train.begun",
        "train.py",
    ]


@pytest.mark.parametrize(
    ("text", "send"),
    [
        ("running fused optimizer", to_the_parent),
        ("activation checkpointing: fits", to_the_group),
    ],
)
def test_what_was_run_is_shown(workplace: Path, text: str, send: Callable[[subprocess.Popen[str]], None]) -> None:
    """A change that fits is said and written, though something cheaper may have been found later."""
    process = begun(workplace, "--json")
    wait_for(process, text)
    send(process)
    out, error = process.communicate()
    assert process.returncode == 130, error
    assert "Traceback" not in error
    answer = json.loads(out)
    assert answer["is_complete"] is False
    shown = [each["name"] for each in answer["changes"]]
    assert {"expandable segments", "no split of large blocks"} & set(shown)  # two run at once; one has ended
    assert answer["need"]["peak_allocated_bytes"] > 0
    has_fitted = any(each["fits"] for each in answer["changes"])
    assert (answer["best"] is not None) == has_fitted == (workplace / "a.diff").exists()
    if "checkpointing" in text:
        assert has_fitted
        assert answer["written"]["is_proved"] is False
        assert "interrupted" in answer["written"]["problem"]
    assert processes_of(workplace / "tmp") == []
