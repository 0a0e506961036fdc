"""Values that are read after steps that had read none: the script is run once more, in the folder where it has run."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked import client
from tests.shared.fresh import USUAL
from ullage.gpu.values.likely_reads import seems_to_read_none

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


def predicted(
    folder: Path,
    *arguments: str,
    code: int,
    values: str = "auto",
    script: str = SCRIPT,
    draws: int = 3,
    compiles: bool = False,
) -> Any:
    """Predict a script of five steps, in a process of its own where it compiles."""
    (folder / "late.py").write_text(NOTES_ITS_RUN + script)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "ULLAGE_"))}
    command = [sys.executable, "-m", "ullage", "predict", "--steps", "5", "--gpu", "T4", "--json", "--values", values]
    command += ["--draws", str(draws)]
    done = client.run(
        [*command, "late.py", *arguments],
        cwd=folder,
        env=environment | ({} if compiles else USUAL),
        is_forked=not compiles,
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) | {"ran": len((folder / "runs").read_text())}


def test_values_are_read_after_all(tmp_path: Path) -> None:
    """They are followed from the start then, and known."""
    told = predicted(tmp_path, code=0)
    assert [(read["op"], read["certainty"]) for read in told["reads"]] == [("nonzero", "known")]
    assert not any("second run" in note for note in told["notes"])


def test_a_script_that_does_not_run_twice_in_its_folder(tmp_path: Path) -> None:
    """The first run is told, in which the values are unknown: it is no error, and no verdict."""
    told = predicted(tmp_path, "out", code=4)
    assert told["verdict"] == "unknown"
    assert [(read["op"], read["certainty"]) for read in told["reads"]] == [("nonzero", "unknown")]
    [note] = [note for note in told["notes"] if "second run" in note]
    assert "FileExistsError" in note
    assert "--values on" in note
    assert predicted(tmp_path, "another", code=0, values="on")["verdict"] == "fits"


def test_a_loss_that_is_logged(tmp_path: Path) -> None:
    """Values are not even followed from the start: the loss is read as zero, and decides nothing."""
    told = predicted(tmp_path, code=0, script=LOGS.replace("LOSS", "loss.item()"))
    assert told["ran"] == 1
    assert [(read["kind"], read["certainty"], read["count"]) for read in told["reads"]] == [("float", "unknown", 4)]
    assert told["values"]["mode"] == "auto"


def test_a_loss_that_is_logged_where_values_are_followed_at_first(tmp_path: Path) -> None:
    """It does not keep values followed: what comes after two steps is read as zero."""
    told = predicted(tmp_path, code=0, script=LOGS.replace("LOSS", "loss.item()") + "\nif 0: torch.nonzero(loss)")
    assert told["ran"] == 1
    assert [(read["kind"], read["certainty"], read["count"]) for read in told["reads"]] == [
        ("float", "unknown", 3),
        ("float", "drawn", 1),  # a step ends with the optimizer's, before what is logged of it
    ]


@pytest.mark.parametrize("read", ["if loss > 0: torch.zeros(1 << 20, device='cuda')", "(loss / 2 < 9) or exit(3)"])
def test_a_read_that_the_source_does_not_show(tmp_path: Path, read: str) -> None:
    """The run is begun anew at once, with values; in a thread of autograd's, too."""
    hook = "layer.weight.register_hook(lambda gradient: None if torch.arange(3).cuda()[2] > 9 else None)"
    for script in (LOGS.replace('print("loss", LOSS)', read), LOGS.replace("optimizer =", f"{hook}\noptimizer =", 1)):
        script = script.replace('print("loss", LOSS)', "")
        told = predicted(tmp_path, code=0, script=script, draws=1)
        assert told["ran"] == 2
        assert {read["certainty"] for read in told["reads"]} <= {"known", "drawn"}
        assert told["reads"]
        (tmp_path / "runs").unlink()


def test_a_script_without_an_end_is_begun_anew_too(tmp_path: Path) -> None:
    script = LOGS.replace("for step in range(5)", "while True").replace('print("loss", LOSS)', "if loss > 9: break")
    told = predicted(tmp_path, code=0, script=script, draws=1)
    assert told["ran"] == 2
    assert len(told["steps"]) >= 5


def test_kernels_that_are_timed_read_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor keeps on the host what they write over, where its cache has no choice of an earlier run."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    script = """
import torch
from torch import nn
layers = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
compiled = torch.compile(layers)
optimizer = torch.optim.SGD(layers.parameters())
for step in range(5):
    compiled(torch.randn(4096, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    told = predicted(tmp_path, code=0, script=script, compiles=True)
    assert told["ran"] == 2, "once more only without torch.compile, to stand beside it"
    assert told["reads"] == []


def test_what_is_known_to_read_begins_with_values(tmp_path: Path) -> None:
    """Of several predictions of a script in one process, as in `ullage.fit`, the first alone is begun anew."""
    (tmp_path / "late.py").write_text(NOTES_ITS_RUN + LOGS.replace('print("loss", LOSS)', "if loss > 9: break"))
    code = "import ullage\nfor _ in range(3): print(len(ullage.predict('late.py', gpu='T4', draws=1).reads))"
    done = client.run([sys.executable, "-c", code], cwd=tmp_path, env=dict(os.environ) | USUAL)
    assert done.stdout == "1\n1\n1\n", done.stderr
    assert (tmp_path / "runs").read_text() == "1111"


PLAIN = ("loss.item()", "x[:, 0]", "F.one_hot(x, 9)", "print(f'{loss:.2f}')", "any(p.requires_grad for p in q)")
READING = (
    *("x[x > 0]", "x[~y]", "x[mask]", "torch.nonzero(x)", "x.unique()", "if loss.item() > 3: pass", "x.any()"),
    *("from transformers import Trainer", "import nowhere_beside", "torch.where(x)", "n = int(loss.item())"),
    *("torch.amp.GradScaler()", "while x.max() > 1: pass", "from torch import distributions", "x.cpu()", "x ="),
    *("os.makedirs('out')", "nn.Embedding(3, 4, sparse=True)"),
)


@pytest.mark.parametrize("line", [*PLAIN, *READING])
def test_what_looks_as_if_it_read_what_decides(tmp_path: Path, line: str) -> None:
    (tmp_path / "beside.py").write_text("import torch\n")
    (tmp_path / "script.py").write_text(f"import numpy as np, torch, beside\nfrom torch import nn\n{line}\n")
    assert seems_to_read_none(tmp_path / "script.py") is (line in PLAIN)


def test_what_is_imported_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import script\nimport torch\n\ndef kept(x): return x[x > 0]\n")
    (tmp_path / "script.py").write_text("import beside\n")
    assert not seems_to_read_none(tmp_path / "script.py")


def test_a_logged_loss_that_is_no_number_to_work_with(tmp_path: Path) -> None:
    """Where a script fails after a loss was read as zero, it is run once more, with values: these are positive."""
    told = predicted(tmp_path, code=0, script=LOGS.replace("LOSS", "math.log(loss.item())"))
    assert told["ran"] == 2
    assert [(read["kind"], read["certainty"], read["count"]) for read in told["reads"]] == [("float", "drawn", 4)]
