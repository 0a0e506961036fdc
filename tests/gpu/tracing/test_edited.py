"""Edited texts that run in place of files: the files stay, and what runs looks like them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.predicting.changes.runs import bytes_of, peaks
from ullage.base.errors import ScriptError, UsageError
from ullage.gpu.tracing.edited_source import EditedSources, packed

SCRIPT = """
import torch
import sizes
model = torch.nn.Linear(sizes.WIDTH, sizes.WIDTH, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(8, sizes.WIDTH, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "sizes.py").write_text("WIDTH = 512\n")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_the_script_and_its_modules_run_as_they_were_edited(script: Path, tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.py"
    edited = {str(script): SCRIPT.replace("ones(8,", "ones(16,"), str(sizes): "WIDTH = 1024\n"}
    given = bytes_of(peaks(script, edited=edited))
    assert script.read_text() == SCRIPT
    assert sizes.read_text() == "WIDTH = 512\n"
    before = bytes_of(peaks(script))
    script.write_text(edited[str(script)])
    sizes.write_text(edited[str(sizes)])
    assert bytes_of(peaks(script)) == given != before


def test_a_command_runs_them_too(script: Path) -> None:
    """Python itself opens the script there, and a module that `-m` names."""
    edited = {str(script): SCRIPT.replace("sizes.WIDTH", "1024").replace("import sizes\n", "")}
    given = bytes_of(peaks(Path(sys.executable), arguments=(str(script),), edited=edited))
    assert given == bytes_of(peaks(script, edited=edited)) != bytes_of(peaks(script))


def test_an_error_shows_the_edited_line(script: Path) -> None:
    with pytest.raises(ScriptError, match="of the edited text"):
        peaks(script, edited={str(script): "import torch\n\n\nraise ValueError('of the edited text')\n"})


def test_a_text_that_cannot_run_is_refused(script: Path) -> None:
    with pytest.raises(UsageError, match="is not valid Python: invalid syntax"):
        peaks(script, edited={str(script): "for"})


def test_source_and_traceback_are_those_of_the_edited_text(script: Path) -> None:
    """What `inspect` and a traceback show is what runs; nothing of it gets into Python's cache of compiled files."""
    sizes = script.parent / "sizes.py"
    word = packed({str(sizes): "def width():\n    return 1 / 0  # edited\n"})
    code = (
        "import inspect, sys, traceback\n"
        "from ullage.gpu.tracing.edited_source import EditedSources\n"
        "EditedSources(sys.argv[1]).install()\n"
        "import sizes\n"
        "print(inspect.getsource(sizes.width))\n"
        "try: sizes.width()\n"
        "except ZeroDivisionError: traceback.print_exc(file=sys.stdout)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, word],
        capture_output=True,
        text=True,
        cwd=script.parent,
        env=os.environ | {"PYTHONPATH": str(script.parent)},
    )
    assert done.stdout.count("# edited") == 2, done.stdout + done.stderr
    assert not list(script.parent.glob("__pycache__/sizes*"))


def test_without_a_text_nothing_is_installed() -> None:
    sources = EditedSources(packed({}))
    hooks = list(sys.path_hooks)
    sources.install()
    assert hooks == sys.path_hooks
    assert sources.text_of(__file__) is None
