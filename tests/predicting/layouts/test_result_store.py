"""What is kept by content: found again by whoever has the same, and never in the way."""

import multiprocessing
import os
import sqlite3
from pathlib import Path

import pytest

from ullage.base.errors import UsageError
from ullage.predicting.layouts.result_store import ResultStore, default_path, store_path


def test_what_is_kept_is_found_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "kept.sqlite"
    with ResultStore(path) as store:
        assert store.get("a") is None
        store.put("a", {"prediction": {"verdict": "fits"}})
    with ResultStore(path) as store:
        assert store.get("a") == {"prediction": {"verdict": "fits"}}
        assert store.get("b") is None
        assert store.problem is None


def _fill(path: Path, first: int) -> None:
    with ResultStore(path) as store:
        for number in range(first, first + 50):
            store.put(str(number), {"number": number})
        assert store.problem is None


def test_two_searches_share_one(tmp_path: Path) -> None:
    path = tmp_path / "kept.sqlite"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_fill, args=(path, first)) for first in (0, 25)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert [each.exitcode for each in writers] == [0, 0]
    with ResultStore(path) as store:
        assert [store.get(str(number)) for number in range(75)] == [{"number": number} for number in range(75)]


def test_a_file_that_is_no_store_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "kept.sqlite"
    path.write_bytes(b"this is no database at all, and not a short one" * 100)
    with ResultStore(path) as store:
        assert store.problem is not None
        assert "file is not a database" in store.problem
        assert "the search continues without" in store.problem
        store.put("a", {})
        assert store.get("a") is None
    assert path.read_bytes().startswith(b"this is no database")


def test_a_store_that_breaks_meanwhile_is_told(tmp_path: Path) -> None:
    path = tmp_path / "kept.sqlite"
    with ResultStore(path) as store:
        store.put("a", {"x": 1})
        other = sqlite3.connect(path)
        other.execute("DROP TABLE results")
        other.commit()
        other.close()
        assert store.get("a") is None
        assert store.problem is not None
        store.put("b", {"x": 2})


def test_a_locked_store_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ullage.predicting.layouts.result_store._WAIT_SECONDS", 0.05)
    path = tmp_path / "kept.sqlite"
    with ResultStore(path) as store:
        other = sqlite3.connect(path)
        other.execute("BEGIN EXCLUSIVE")
        store.put("a", {"x": 1})
        assert store.problem is not None
        assert "database is locked" in store.problem
        other.rollback()
        other.close()


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """A file that may not grow any more stands in for a disk that is full: SQLite says the same."""
    with ResultStore(tmp_path / "kept.sqlite") as store:
        store._database.execute("PRAGMA max_page_count = 3")
        for number in range(100):
            store.put(str(number), {"x": os.urandom(2000).hex()})
        assert store.problem is not None
        assert "database or disk is full" in store.problem


def test_what_somebody_else_has_written_is_no_result(tmp_path: Path) -> None:
    path = tmp_path / "kept.sqlite"
    with ResultStore(path) as store:
        store.put("a", {"x": 1})
    database = sqlite3.connect(path)
    database.executemany(
        "INSERT OR REPLACE INTO results VALUES (?, 0, ?)", [("a", b"not packed"), ("b", 7), ("c", None), ("d", "text")]
    )
    database.commit()
    database.close()
    with ResultStore(path) as store:
        assert [store.get(key) for key in "abcd"] == [None] * 4


def test_the_users_own_is_for_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ResultStore(default_path()) as store:
        store.put("a", {})
        assert store.problem is None
    assert default_path().parent.stat().st_mode & 0o777 == 0o700
    default_path().parent.chmod(0o777)
    with ResultStore(default_path()) as store:
        assert store.problem is not None
        assert "other users can write to" in store.problem


def test_where_it_is(tmp_path: Path) -> None:
    assert store_path(None) == default_path()
    assert store_path("none") is None
    assert store_path(tmp_path / "x.sqlite") == tmp_path / "x.sqlite"
    for wrong in (tmp_path, tmp_path / "missing" / "x.sqlite"):
        with pytest.raises(UsageError, match="is not a file; expected the path of a file"):
            store_path(wrong)
    with ResultStore(None) as store:
        store.put("a", {})
        assert store.get("a") is None
        assert store.problem is None
