"""What is given is told once, by one function, and Python answers of every kind as the command does."""

import gzip
import io
import json
import os
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import ullage
from tests.forked import client
from ullage.api.input import InputKind, input_of
from ullage.recorded.snapshot.snapshot import SnapshotError
from ullage.running.run_files.facts import RunFacts
from ullage.running.run_files.live import LiveWriter

SNAPSHOT = Path(__file__).parents[1] / "snapshots/oom.pickle.gz"
LOG = (
    "step 1\nRuntimeError: CUDA out of memory. Tried to allocate 2.58 GiB (GPU 0; 15.78 GiB total capacity; 8.15 GiB "
    "already allocated; 1.67 GiB free; 4.96 GiB cached)\n"
)
IN_PYTHON = (
    "import json, sys, ullage; answer = ullage.explain(sys.argv[1]); ullage.show(answer); "
    "open(sys.argv[2], 'w').write(json.dumps(answer.to_json()))"
)


def zipped(*names: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, LOG)
    return content.getvalue()


def tarred() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(SNAPSHOT, "oom.pickle.gz")
    return content.getvalue()


def make(name: str, folder: Path) -> Path:
    """Make an input of a name below."""
    path = folder / "given"
    match name:
        case "a snapshot":
            shutil.copy(SNAPSHOT, path)
        case "a log":
            path.write_text(LOG)
        case "a packed log":
            path.write_bytes(gzip.compress(LOG.encode()))
        case "a zip archive of a log":
            path.write_bytes(zipped("train.log"))
        case "a folder of ranks":
            for rank in range(2):
                (path / f"rank{rank}").mkdir(parents=True)
                shutil.copy(SNAPSHOT, path / f"rank{rank}" / "snapshot.pickle.gz")
        case "a run that ran out" | "a run that did not" | "two runs":
            for number in range(2 if name == "two runs" else 1):
                run = path / f"run-{number}" if name == "two runs" else path
                run.mkdir(parents=True)
                facts = RunFacts(pid=1, command=("train.py",), host="here", started=0.0, told=0.0)
                LiveWriter(run / "process-1.live").write_facts(facts.to_json())
                if name == "a run that ran out":
                    (run / "oom-1-1").mkdir()
                    (run / "oom-1-1" / "environment.json").write_text(json.dumps({"pid": 1}))
                    (run / "oom-1-1" / "snapshot.pickle").write_bytes(gzip.decompress(SNAPSHOT.read_bytes()))
        case "a tar archive":
            path.write_bytes(tarred())
        case "a zip archive of two":
            path.write_bytes(zipped("a.log", "b.log"))
        case "an empty folder":
            path.mkdir()
    return path


ANSWERED = {
    "a snapshot": InputKind.SNAPSHOT,
    "a log": InputKind.TEXT,
    "a packed log": InputKind.TEXT,
    "a zip archive of a log": InputKind.TEXT,
    "a folder of ranks": InputKind.RANKS,
    "a run that ran out": InputKind.RUN,
    "a run that did not": InputKind.RUN,
    "two runs": InputKind.RUN,
}
REFUSED = {
    "a tar archive": "is a tar archive; unpack it",
    "a zip archive of two": "has 2 files",
    "an empty folder": "expected a folder that `ullage run` has written",
    "nothing": "cannot be read: No such file or directory",
}


@pytest.mark.parametrize("name", ANSWERED)
def test_python_and_the_command_answer_alike(name: str, tmp_path: Path) -> None:
    path, plain = make(name, tmp_path), tmp_path / "answer.json"
    assert input_of(path).kind is ANSWERED[name]
    command = [sys.executable, "-m", "ullage", "explain", str(path)]
    printed, as_json = client.run(command), client.run([*command, "--json"])
    assert (printed.returncode, as_json.returncode) == (0, 0), printed.stderr
    in_python = client.run([sys.executable, "-c", IN_PYTHON, str(path), str(plain)])
    assert in_python.stdout == printed.stdout
    assert json.loads(plain.read_text()) == json.loads(as_json.stdout)


@pytest.mark.parametrize("name", REFUSED)
def test_python_and_the_command_refuse_alike(name: str, tmp_path: Path) -> None:
    path = make(name, tmp_path)
    with pytest.raises(ullage.UsageError, match=REFUSED[name]) as refused:
        ullage.explain(path)
    ended = client.run([sys.executable, "-m", "ullage", "explain", str(path)])
    assert ended.returncode == 2
    assert str(refused.value) in ended.stderr


def test_a_tar_archive_is_called_an_archive(tmp_path: Path) -> None:
    assert input_of(make("a tar archive", tmp_path)).kind is InputKind.ARCHIVE


def test_standard_input_is_read_as_the_log(tmp_path: Path) -> None:
    path = make("a log", tmp_path)
    assert input_of(Path("-")).kind is InputKind.STANDARD_INPUT
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert input_of(pipe).kind is InputKind.STANDARD_INPUT
    with path.open() as log:
        told = client.run([sys.executable, "-m", "ullage", "explain", "-"], stdin=log)
    with path.open() as log:
        in_python = client.run([sys.executable, "-c", IN_PYTHON, "-", str(tmp_path / "answer.json")], stdin=log)
    assert told.returncode == 0, told.stderr
    assert told.stdout == in_python.stdout
    expected = ullage.explain(path)
    assert isinstance(expected, ullage.Explanation)
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer == json.loads(json.dumps(expected.to_json())) | {"source": "standard input"}


def test_a_run_that_did_not_run_out_has_a_summary(tmp_path: Path) -> None:
    told = ullage.explain(make("a run that did not", tmp_path))
    assert isinstance(told, ullage.Explanation)
    assert (told.cause.value, told.sentence) == ("did_not_fail", "In this run memory did not run out.")
    assert told.run is not None
    assert told.to_json()["summary"] == list(told.run.summary)


@pytest.mark.parametrize("name", ["a log", "a folder of ranks", "a run that did not"])
def test_what_needs_a_snapshot_says_what_it_was_given(name: str, tmp_path: Path) -> None:
    path = make(name, tmp_path)
    for ask in (
        lambda: ullage.tune(path),
        lambda: ullage.diff(SNAPSHOT, path),
        lambda: ullage.repro(path, tmp_path / "repro.py"),
    ):
        with pytest.raises(SnapshotError, match=f"is not a snapshot but {ANSWERED[name].value}, which ullage explain"):
            ask()
