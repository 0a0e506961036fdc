"""What somebody else can do who may write where a command reads or writes: he changes nothing, and nobody waits."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.security.users import as_nobody, content_of
from ullage.base.foreign_files import open_regular
from ullage.running.export.prometheus import Endpoint
from ullage.running.export.table import Drain
from ullage.running.run_files.folder import OomEvidence, read_run
from ullage.running.run_files.live import LiveWriter, Sample

ULLAGE = [sys.executable, "-m", "ullage"]


def _ullage(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ULLAGE, *words], cwd=cwd, capture_output=True, text=True, timeout=900, umask=0)


# ---- a folder of runs that is for all


def test_a_folder_of_runs_that_others_can_write_to_is_refused(open_path: Path) -> None:
    """Whoever can write there makes a link of the name that is to come, and what a run removes is not its own."""
    precious = open_path / "precious"
    precious.mkdir(mode=0o700)
    (precious / "thesis.tex").write_text("precious")
    (open_path / "train.py").write_text("print('hello')")
    open_path.chmod(0o1777)
    as_nobody(lambda: _make_for_all(open_path / "ullage-runs"))
    before = content_of(precious)
    ended = _ullage("run", "train.py", cwd=open_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "other users can write to" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert list((open_path / "ullage-runs").iterdir()) == []
    other = _ullage("run", "--folder", "mine/run", "train.py", cwd=open_path)
    assert (other.returncode, other.stdout) == (0, "hello\n")
    assert content_of(precious) == before


def _make_for_all(path: Path) -> None:
    os.umask(0)
    path.mkdir(mode=0o777)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_link_of_another_user_is_not_where_runs_are_made(open_path: Path) -> None:
    precious = open_path / "precious"
    precious.mkdir(mode=0o700)
    (open_path / "train.py").write_text("print('hello')")
    open_path.chmod(0o777)
    as_nobody(lambda: (open_path / "ullage-runs").symlink_to(precious))
    ended = _ullage("run", "train.py", cwd=open_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "is a symbolic link that another user created" in ended.stderr
    assert list(precious.iterdir()) == []


def test_a_folder_that_is_moved_while_the_run_goes_on_is_not_missed(open_path: Path) -> None:
    """What has its name then is not read, reported on or removed: one line says so, and the script's end is its own."""
    (open_path / "train.py").write_text(
        "import os, pathlib\n"
        "[run] = pathlib.Path('ullage-runs').iterdir()\n"
        "os.rename('ullage-runs', 'taken')\n"
        "os.makedirs(run); (run / 'process-1.live').write_text('precious')\n"
    )
    ended = _ullage("run", "train.py", cwd=open_path)
    assert ended.returncode == 0
    assert "was moved during the run" in ended.stderr
    [kept] = (open_path / "ullage-runs").rglob("*.live")
    assert kept.read_text() == "precious"


# ---- two containers


def _can_make_containers() -> bool:
    made = shutil.which("unshare")
    line = [made or "", "-pf", "--mount-proc", "true"]
    return made is not None and subprocess.run(line, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _can_make_containers(), reason="containers cannot be made here")
def test_two_containers_that_share_a_folder_have_a_folder_each(tmp_path: Path) -> None:
    """The same process number and, begun together, the same second: who ends first removes only what is his own."""
    (tmp_path / "train.py").write_text(
        "import os, sys, time\n"
        "print(len(os.listdir('ullage-runs')), flush=True)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
    )
    line = ["unshare", "-pf", "--mount-proc", *ULLAGE, "run", "train.py"]
    first, second = (
        subprocess.Popen([*line, name], cwd=tmp_path, stdout=subprocess.PIPE, text=True) for name in ("a", "b")
    )
    runs = tmp_path / "ullage-runs"
    with first, second:
        try:
            for one in (first, second):
                assert one.stdout is not None
                assert one.stdout.readline()
            assert len(list(runs.iterdir())) == 2
            (tmp_path / "a").touch()
            assert first.wait(900) == 0
            assert len(list(runs.iterdir())) == 1
        finally:
            for name in ("a", "b"):
                (tmp_path / name).touch()
        assert second.wait(900) == 0


# ---- nothing waits


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/ptmx"),
    "socket": lambda path: _bind(path),
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused_unread(open_path: Path, kind: str) -> None:
    KINDS[kind](open_path / "x")
    with pytest.raises(OSError, match="expected a regular file"):
        open_regular(open_path / "x")


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_runs_that_are_none_are_skipped(open_path: Path, kind: str) -> None:
    """By the tables of samples, a scrape, and whoever reads a run's folder; the one beside it is read."""
    sample = Sample._make((1, 2.0, 0, *[1] * 7))
    writer = LiveWriter(open_path / "process-2.live")
    writer.write_facts({"pid": 2})
    writer.add(sample)
    KINDS[kind](open_path / "process-1.live")
    (open_path / "oom-1-1").mkdir()
    KINDS[kind](open_path / "oom-1-1/environment.json")
    KINDS[kind](open_path / "oom-1-1/snapshot.pickle")
    assert [row.pid for row in Drain().rows(open_path)] == [2]
    endpoint = Endpoint("0")
    endpoint.update(open_path)
    assert any(family.samples for family in endpoint.collect())
    endpoint.close()
    run = read_run(open_path)
    assert ([process.facts.pid for process in run.processes], run.evidence) == ([2], ())
    assert OomEvidence(open_path / "oom-1-1", {}).snapshot is None


def test_no_command_waits_for_a_pipe(open_path: Path) -> None:
    """Each is given one, or finds one where a file of a run should be; all end, by one sentence or without it."""
    for name in (
        "process-1.live",
        "pipe",
        "pipe.pickle",
        "pipe.py",
        "oom-1-1/environment.json",
        "oom-1-1/snapshot.pickle",
    ):
        (open_path / name).parent.mkdir(exist_ok=True)
        os.mkfifo(open_path / name)
    lines = [
        *("watch . --once", "explain .", "explain pipe", "explain oom-1-1/snapshot.pickle", "tune pipe.pickle"),
        *("diff pipe.pickle pipe.pickle", "repro pipe.pickle -o out.py", "predict pipe.py --gpu T4"),
    ]
    started = {
        line: subprocess.Popen(
            [*ULLAGE, *line.split()], cwd=open_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for line in lines
    }
    for line, process in started.items():
        _, error = process.communicate(timeout=900)
        assert process.returncode == (0 if line.startswith("watch") else 2), line
        assert "Traceback" not in error
        assert line.startswith("watch") or len(error.strip().splitlines()) <= 2, error


def test_a_pipe_that_a_shell_gives_is_read(tmp_path: Path) -> None:
    """`<(zcat log)` is a file that the process was started with: whoever started it has the other end, too."""
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    line = f"{sys.executable} -m ullage explain <(echo '{text}')"
    told = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert told.returncode == 0, told.stderr
    assert "2.00 GiB" in told.stdout


# ---- nothing of the current folder is run


@pytest.mark.parametrize("words", ["doctor", "predict job/train.py --gpu T4"])
def test_what_lies_in_the_current_folder_is_not_imported(open_path: Path, words: str) -> None:
    """Others can have put it there. (`python -m ullage` itself, without -P, has Python look there first.)"""
    (open_path / "job").mkdir()
    (open_path / "job/train.py").write_text("import torch; torch.empty(1, device='cuda')")
    for name in ("json", "warnings", "torch", "ullage", "sitecustomize", "rich"):
        (open_path / f"{name}.py").write_text(
            f"open({str(open_path / 'imported')!r}, 'a').write({name!r}); raise OSError"
        )
    line = [sys.executable, "-P", "-m", "ullage", *words.split()]
    told = subprocess.run(line, cwd=open_path, capture_output=True, timeout=900, text=True, check=False)
    assert told.returncode in (0, 1), told.stderr
    assert "2.11" in told.stdout or "T4" in told.stdout
    assert not (open_path / "imported").exists()
