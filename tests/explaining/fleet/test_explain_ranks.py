"""A folder with the snapshots of 16 ranks, five of which differ: the five are named, and nothing else is."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

import ullage
from tests.explaining.fleet.made import KINDS, make, planted, record
from tests.forked import client
from ullage.base.engines.engine import EngineError, PlainData
from ullage.base.engines.local import LocalEngine
from ullage.explaining.fleet.fleet import explain_fleet
from ullage.explaining.fleet.rank_files import rank_files

RANKS = 16
WORDS = {
    "leak": "memory grows: every step keeps 4.0 MiB more, allocated at fleet/train.py:60",
    "batch": "of it activations",
    "card": "a different GPU model: the cuBLAS workspace has 8.1 MiB",
    "pieces": "fragmentation",
    "oom": "out of memory (not enough GPU memory): a request of 384.0 MiB failed at fleet/train.py:55",
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One recording of each kind of rank, made on emulated cards."""
    folder = tmp_path_factory.mktemp("recorded")
    for kind in KINDS:
        record(kind, folder)
    return folder


@pytest.fixture
def fleet(recorded: Path, tmp_path: Path) -> Path:
    """A folder of 16 ranks."""
    make(tmp_path / "fleet", RANKS, recorded=recorded)
    return tmp_path / "fleet"


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ullage", "explain", *map(str, arguments)]
    return client.run(command)


def test_the_five_are_named_and_why(fleet: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    answer = ullage.explain_ranks(fleet, workers=2, html=page)
    assert {one.figures.file.rank for one in answer.different} == planted(RANKS).keys()
    for one in answer.different:
        rank = one.figures.file.rank
        assert rank is not None
        assert WORDS[planted(RANKS)[rank]] in one.why
    assert [len(group.ranks) for group in answer.kinds] == [RANKS - 5]
    [oom] = [rank for rank, kind in planted(RANKS).items() if kind == "oom"]
    assert answer.fullest_name == f"rank {oom}"
    assert answer.fullest is not None
    assert answer.fullest.cause == "truly_full"
    text = page.read_text()
    assert f"5 OF {RANKS} RANKS DIFFER" in text
    assert "Peak of reserved memory by rank" in text


def test_the_command_prints_a_table_and_json(fleet: Path) -> None:
    done = _run(fleet)
    assert done.returncode == 0, done.stderr
    assert f"5 OF {RANKS} RANKS DIFFER" in done.stdout
    assert f"{RANKS - 5} ranks are alike (peak " in done.stdout
    data = json.loads(_run(fleet, "--json", "--workers", "1").stdout)
    assert {one["rank"] for one in data["different"]} == planted(RANKS).keys()
    assert len(data["ranks"]) == RANKS
    assert data["missing"] == data["unreadable"] == []


def test_one_rank_is_explained_whole(fleet: Path) -> None:
    [leak] = [rank for rank, kind in planted(RANKS).items() if kind == "leak"]
    done = _run(fleet, "--rank", str(leak), "--json")
    assert json.loads(done.stdout)["cause"] == "leak"
    missing = _run(fleet, "--rank", "99")
    assert missing.returncode == 2
    assert "no snapshot of rank 99; expected a rank from 0 to 15" in missing.stderr


def test_broken_snapshots_are_a_line_each_and_the_rest_goes_on(fleet: Path) -> None:
    """One that is cut off, one that is empty, one that would run something, one that is not there at all."""
    paths = {rank: fleet / f"iteration_6/rank{rank}_memory_snapshot.pickle" for rank in range(RANKS)}
    whole = paths[0].read_bytes()
    paths[0].write_bytes(whole[: len(whole) // 2])
    paths[2].write_bytes(b"")
    paths[3].write_bytes(b"cposix\nsystem\n(S'touch pwned'\ntR.")
    paths[5].unlink()
    paths[6].with_suffix(".pickle.gz").write_bytes(gzip.compress(whole)[:-9])
    paths[6].unlink()
    answer = ullage.explain_ranks(fleet)
    assert {name for name, _ in answer.unreadable} == {"rank 0", "rank 2", "rank 3", "rank 6"}
    assert answer.missing == (5,)
    assert {one.figures.file.rank for one in answer.different} == planted(RANKS).keys()
    done = _run(fleet)
    assert done.returncode == 0
    assert "rank 2: " in done.stdout
    assert "is empty" in done.stdout
    assert "no snapshot exists for 1 rank: 5" in done.stdout


def test_a_reader_that_is_killed_costs_its_rank_alone(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the kernel's killer takes it for lack of memory: the next reader reads on."""
    poisoned = fleet / "iteration_6" / "rank2_memory_snapshot.pickle"
    hook = fleet.parent / "hooks"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "def look(event, arguments):\n"
        f"    if event == 'open' and str(arguments[0]) == {str(poisoned)!r} and len(sys.argv) > 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.addaudithook(look)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(hook))
    answer = ullage.explain_ranks(fleet, workers=1)
    [(name, why)] = answer.unreadable
    assert name == "rank 2"
    assert "was killed" in why
    assert {one.figures.file.rank for one in answer.different} == planted(RANKS).keys()


class Losing(LocalEngine):
    """An engine that loses the work for one rank."""

    def submit(self, function: str, payload: PlainData) -> "Future[PlainData]":
        if any("rank2_" in path for path in payload["paths"]):
            lost: Future[PlainData] = Future()
            lost.set_exception(EngineError("the job was lost"))
            return lost
        return super().submit(function, payload)


def test_an_engine_reads_the_same_and_a_lost_job_costs_its_ranks(fleet: Path) -> None:
    """As --on slurm and --on ray do, with what any engine is given and gives back."""
    with Losing(2) as engine:
        answer = explain_fleet(fleet, rank_files(fleet), engine=engine)
    assert {one.figures.file.rank for one in answer.different} == planted(RANKS).keys()
    names = [name for name, _ in answer.unreadable]
    assert "rank 2" in names
    assert all("the job was lost" in why for _, why in answer.unreadable)
    assert len(answer.unreadable) + sum(len(group.ranks) for group in answer.groups) == RANKS


def test_a_folder_where_nothing_can_be_read_is_an_error(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank{rank}.pickle").write_bytes(b"nothing")
    done = _run(tmp_path)
    assert done.returncode == 2
    assert "no snapshot in" in done.stderr


def test_options_of_one_snapshot_are_refused(fleet: Path) -> None:
    done = _run(fleet, "--capacity", "10GiB")
    assert done.returncode == 2
    assert "give --rank too" in done.stderr
    with pytest.raises(ullage.UsageError, match="give rank= too"):
        ullage.explain(fleet, capacity="10GiB")
    with pytest.raises(ullage.UsageError, match="two or more ranks"):
        ullage.explain_ranks(fleet.parent / "nothing")


def test_ranks_of_a_folder_of_their_own_each(fleet: Path, tmp_path: Path) -> None:
    """rank_0/snapshot.pickle: which is also how a folder of evidence looks."""
    for path in fleet.rglob("*.pickle"):
        rank = path.name.removeprefix("rank").split("_")[0]
        (tmp_path / "other" / f"rank_{rank}").mkdir(parents=True)
        shutil.move(path, tmp_path / "other" / f"rank_{rank}" / "snapshot.pickle")
    data = json.loads(_run(tmp_path / "other", "--json").stdout)
    assert {one["rank"] for one in data["different"]} == planted(RANKS).keys()


def test_no_process_is_left(fleet: Path) -> None:
    before = set(os.listdir("/proc"))
    ullage.explain_ranks(fleet, workers=3)
    ours = [
        number for number in set(os.listdir("/proc")) - before if number.isdecimal() and _parent(number) == os.getpid()
    ]
    assert ours == []


def _parent(number: str) -> int:
    try:
        return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
