"""Which run of several is explained, and where it is said how to name another."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import client
from ullage.base.errors import UsageError
from ullage.running.run_files.facts import RunFacts
from ullage.running.run_files.live import LiveWriter
from ullage.running.supervision.verdict import find_run


def _run(folder: Path, *, changed: float) -> Path:
    folder.mkdir(parents=True)
    writer = LiveWriter(folder / "process-1.live")
    writer.write_facts(RunFacts(pid=1, command=("train.py",), host="here", started=0.0, told=0.0).to_json())
    os.utime(folder, (changed, changed))
    return folder


def test_of_several_runs_the_newest_is_explained(tmp_path: Path) -> None:
    """By when something was last added to it; folders without a run do not count."""
    runs = tmp_path / "ullage-runs"
    _run(runs / "z-old", changed=1000)
    newest = _run(runs / "a-new", changed=2000)
    (runs / "empty").mkdir()
    found, count = find_run(runs)
    assert (found.folder, count) == (newest, 2)
    assert find_run(newest)[1] == 0


def test_of_many_runs_only_the_newest_is_read(tmp_path: Path) -> None:
    """Each old one has megabytes of samples and snapshots; how many files are opened does not grow with them."""
    code = (
        "import sys; from pathlib import Path; from ullage.running.supervision.verdict import find_run\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == 'open' else None)\n"
        "found, count = find_run(Path('ullage-runs'))\n"
        "print(found.folder.name, count, *(name for name in opened if '.py' not in name and not name.isdecimal()))"
    )
    for number in range(30):
        _run(tmp_path / "ullage-runs" / f"run-{number}", changed=1000.0 + number)
        evidence = tmp_path / "ullage-runs" / f"run-{number}" / "oom-1-1"
        evidence.mkdir()
        (evidence / "environment.json").write_text("{}")
        os.utime(evidence.parent, (1000 + number, 1000 + number))
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    newest = "ullage-runs/run-29"
    assert told.stdout.split() == [*("run-29", "30", f"{newest}/oom-1-1/environment.json", f"{newest}/process-1.live")]


def test_a_newest_run_that_cannot_be_read_gives_way_to_the_one_before(tmp_path: Path) -> None:
    _run(tmp_path / "old", changed=1000.0)
    damaged = _run(tmp_path / "new", changed=2000.0)
    [live] = damaged.glob("*.live")
    live.write_bytes(bytes(live.stat().st_size))
    os.utime(damaged, (2000, 2000))
    assert find_run(tmp_path)[0].folder.name == "old"


def test_it_says_which_one_and_how_to_name_another(tmp_path: Path) -> None:
    """One line on standard error; standard output is the report's alone."""
    for name, changed in (("first", 1000.0), ("second", 2000.0)):
        _run(tmp_path / "ullage-runs" / name, changed=changed)
    ended = client.run(
        [sys.executable, "-m", "ullage", "explain", "ullage-runs", "--json"],
        cwd=tmp_path,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == (
        "ullage: explaining second, the newest of 2 runs in ullage-runs; to explain another run: "
        "ullage explain ullage-runs/NAME\n"
    )
    assert ended.stdout.startswith("{")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(UsageError, match=f"{tmp_path} has neither"):
        find_run(tmp_path)
