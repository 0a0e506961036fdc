"""Which rank a snapshot is of, by the names that people give."""

import os
from pathlib import Path

import pytest

from ullage.base.errors import UsageError
from ullage.explaining.fleet.rank_files import rank_files


def _make(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (number, number))


@pytest.mark.parametrize(
    "form",
    [
        "iteration_20/rank{}_memory_snapshot.pickle",  # torchtitan, torchtune
        "iteration_20_exit/rank{}_memory_snapshot.pickle",
        "snapshot_rank{}.pickle",
        "snapshot_rank{}.pickle.gz",
        "memory_snapshot-rank{}.pickle",
        "oom_rank-{}_snapshot.pickle",
        "memory_snapshot_rank{}_step6.pkl",
        "prof_memsnap_r{}.pkl",
        "rank_{}/snapshot.pickle",
        "rank{}/step_6/snapshot.pickle",
        "rank_{}.1754338790131393427.pickle",
        "snapshot_{}.pickle",
        "{}.pickle",
        "node0/global_rank{}.pickle",
        "RANK{:04d}.pickle",
    ],
)
def test_a_rank_is_read_from_its_name(tmp_path: Path, form: str) -> None:
    _make(tmp_path, *(form.format(rank) for rank in (0, 1, 2, 11)))
    files = rank_files(tmp_path)
    assert [file.rank for file in files] == [0, 1, 2, 11]
    assert [file.name for file in files] == ["rank 0", "rank 1", "rank 2", "rank 11"]


def test_of_each_rank_the_latest_step_is_taken(tmp_path: Path) -> None:
    """By the number of the step, not by its text: 20 is later than 5."""
    _make(tmp_path, *(f"iteration_{step}/rank{rank}_memory_snapshot.pickle" for step in (20, 5) for rank in (0, 1)))
    files = rank_files(tmp_path)
    assert [file.path.parent.name for file in files] == ["iteration_20", "iteration_20"]
    assert [file.older for file in files] == [1, 1]


@pytest.mark.parametrize(
    "names",
    [
        ("host-a_Nov_24_10_00_00.pickle", "host-b_Nov_24_10_00_01.pickle"),
        ("host-a_4711.1764000000123.pickle", "host-a_4712.1764000000200.pickle"),
        ("node0/local_rank0.pickle", "node1/local_rank0.pickle"),
        ("node0/rank0.pickle", "node1/rank0.pickle"),
        ("before.pickle", "after.pickle"),
    ],
)
def test_where_names_tell_no_rank_each_file_is_a_process(tmp_path: Path, names: tuple[str, ...]) -> None:
    _make(tmp_path, *names)
    files = rank_files(tmp_path)
    assert [file.rank for file in files] == [None, None]
    assert sorted(file.name for file in files) == sorted(name.removesuffix(".pickle") for name in names)


def test_the_folder_of_a_recorded_run_is_none_of_ranks(tmp_path: Path) -> None:
    """It has the same snapshots, and says more than they do."""
    _make(tmp_path, "oom-1-1/snapshot.pickle", "oom-1-1/environment.json", "oom-2-1/snapshot.pickle")
    assert rank_files(tmp_path) == ()


def test_what_is_no_snapshot_is_left_alone(tmp_path: Path) -> None:
    _make(tmp_path, "rank0.pickle", "rank1.json", "rank2.txt", ".rank3.pickle", ".git/rank4.pickle")
    (tmp_path / "rank5.pickle").mkdir()
    os.mkfifo(tmp_path / "rank6.pickle")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [file.rank for file in rank_files(tmp_path)] == [0]


def test_a_folder_with_far_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ullage.explaining.fleet.rank_files.MOST_FILES", 3)
    _make(tmp_path, *(f"rank{rank}.pickle" for rank in range(5)))
    with pytest.raises(UsageError, match="more than 3 files"):
        rank_files(tmp_path)
