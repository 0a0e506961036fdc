"""Values that are read after steps that had read none: the script is run once more, in the folder where it has run."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.emulated.fresh import USUAL
from tests.forked import client

SCRIPT = """
import os, sys, torch
if len(sys.argv) > 1:
    os.mkdir(sys.argv[1])
layer = torch.nn.Linear(16, 4).cuda()
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for step in range(5):
    layer(torch.randn(64, 16, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step >= 3:
        mask = (torch.arange(1 << 20) % 7 == 0).cuda()
        kept = torch.zeros(1 << 20, 4, device="cuda")[mask]
"""
LOGS = """
import math, torch
layer = torch.nn.Linear(16, 4).cuda()
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for step in range(5):
    loss = layer(torch.randn(64, 16, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", LOSS)
"""


NOTES_ITS_RUN = 'open("runs", "a").write("1")'
"""What stands before the first end of a line of a script, so that how often it has run is known."""


def predicted(folder: Path, *arguments: str, code: int, values: str = "auto", script: str = SCRIPT) -> Any:
    """Predict a script of five steps."""
    (folder / "late.py").write_text(NOTES_ITS_RUN + script)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "ULLAGE_"))}
    command = [sys.executable, "-m", "ullage", "predict", "--steps", "5", "--gpu", "T4", "--json", "--values", values]
    done = client.run([*command, "late.py", *arguments], cwd=folder, env=environment | USUAL)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) | {"ran": len((folder / "runs").read_text())}


def test_values_are_read_after_all(tmp_path: Path) -> None:
    """They are followed from the start then, and known."""
    told = predicted(tmp_path, code=0)
    assert [(read["op"], read["certainty"]) for read in told["reads"]] == [("nonzero", "known")]
    assert not any("once more" in note for note in told["notes"])


def test_a_script_that_does_not_run_twice_in_its_folder(tmp_path: Path) -> None:
    """The first run is told, in which the values are unknown: it is no error, and no verdict."""
    told = predicted(tmp_path, "out", code=4)
    assert told["verdict"] == "unknown"
    assert [(read["op"], read["certainty"]) for read in told["reads"]] == [("nonzero", "unknown")]
    [note] = [note for note in told["notes"] if "once more" in note]
    assert "FileExistsError" in note
    assert "--values on" in note
    assert predicted(tmp_path, "another", code=0, values="on")["verdict"] == "fits"


def test_a_loss_that_is_logged(tmp_path: Path) -> None:
    """It does not keep values followed: what comes after two steps is read as zero, and decides nothing."""
    told = predicted(tmp_path, code=0, script=LOGS.replace("LOSS", "loss.item()"))
    assert told["ran"] == 1
    assert [(read["kind"], read["certainty"], read["count"]) for read in told["reads"]] == [
        ("float", "unknown", 3),
        ("float", "drawn", 1),  # a step ends with the optimizer's, before what is logged of it
    ]


def test_a_logged_loss_that_is_no_number_to_work_with(tmp_path: Path) -> None:
    """Where a script fails after a loss was read as zero, it is run once more, with values: these are positive."""
    told = predicted(tmp_path, code=0, script=LOGS.replace("LOSS", "math.log(loss.item())"))
    assert told["ran"] == 2
    assert [(read["kind"], read["certainty"], read["count"]) for read in told["reads"]] == [("float", "drawn", 4)]
