"""Values that are read after steps that had read none: the script is run once more, in the folder where it has run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def predicted(folder: Path, *arguments: str, code: int, values: str = "auto") -> Any:
    """Predict the script, which reads nothing in its first three steps."""
    (folder / "late.py").write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "ULLAGE_"))}
    command = [sys.executable, "-m", "ullage", "predict", "--steps", "5", "--gpu", "T4", "--json", "--values", values]
    done = subprocess.run(
        [*command, "late.py", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


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
