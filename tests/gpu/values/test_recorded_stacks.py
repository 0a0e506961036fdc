"""Stacks in PyTorch's snapshots are those of a run whose values nobody follows."""

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked import client

SCRIPT = """
import sys, torch
import torch.nn.functional as F
torch.cuda.memory._record_memory_history(stacks="python")
layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
optimizer = torch.optim.AdamW(layer.parameters())
for step in range(3):
    images = torch.randn(256, 64, device="cuda")
    labels = torch.randint(0, 8, (256,)).cuda()
    loss = F.cross_entropy(layer(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cat([images, images])
    if step == 1:
        torch.cuda.memory._dump_snapshot(sys.argv[1])
"""


def traced(folder: Path, values: str, whose: str) -> Any:
    """Return sizes and stacks of what was allocated, from the snapshot of `ullage predict` or of the script."""
    (folder / "train.py").write_text(SCRIPT)
    files = {"predict": folder / f"{values}.pickle", "script": folder / f"{values}-own.pickle"}
    command = [sys.executable, "-m", "ullage", "predict", "--gpu", "T4", "--steps", "3", "--values", values]
    words = ["--snapshot", files["predict"], "train.py", files["script"]]
    done = client.run([*command, *words], cwd=folder, env=dict(os.environ) | client.USUAL)
    assert done.returncode == 0, done.stderr
    return [
        (entry["size"], [(frame["filename"], frame["name"], frame["line"]) for frame in entry["frames"]])
        for trace in pickle.loads(files[whose].read_bytes())["device_traces"]
        for entry in trace
        if entry["action"] == "alloc"
    ]


@pytest.mark.parametrize("whose", ["predict", "script"])
def test_stacks_are_those_of_a_run_without_values(tmp_path: Path, whose: str) -> None:
    with_values, without = (traced(tmp_path, mode, whose) for mode in ("on", "off"))
    assert len(without) > 40
    assert any(not frames for _, frames in without), "backward's threads have none"
    assert with_values == without
