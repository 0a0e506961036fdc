"""A large snapshot is read while the command line is loading, and nothing of what is said of it changes."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from ullage.base.errors import UsageError
from ullage.cli import large_snapshot
from ullage.cli.large_snapshot import end_without_freeing, is_large, read_ahead_of
from ullage.recorded.snapshot import reading
from ullage.recorded.snapshot.reading import reading_of

LARGE_BYTES = 1 << 25


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A file that is called large here, so that none of that size is made."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    return path


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> dict[Path, object]:
    """What is read ahead, where every file is called large."""
    monkeypatch.setattr(large_snapshot, "is_large", Path.is_file)
    monkeypatch.setattr(large_snapshot, "_keep_freed_memory", lambda: None)
    begun: dict[Path, object] = {}
    monkeypatch.setattr(reading, "_ahead", begun)
    return begun


def test_the_one_snapshot_among_the_words_is_read_once(snapshot: Path, ahead: dict[Path, object]) -> None:
    assert read_ahead_of(["--json", "--device", "0", str(snapshot)])
    begun = ahead[snapshot]
    assert reading_of(snapshot) is begun
    assert ahead == {}
    assert reading_of(snapshot) is not begun


def test_tables_are_handed_over_and_not_kept(snapshot: Path) -> None:
    begun = reading_of(snapshot)
    assert "root" in begun.result()
    with pytest.raises(AssertionError, match="handed over"):
        begun.result()


def test_an_error_is_raised_where_the_tables_are_asked_for(tmp_path: Path) -> None:
    begun = reading_of(tmp_path / "none.pickle")
    with pytest.raises(UsageError, match="No such file"):
        begun.result()


@pytest.mark.parametrize("beginning", [b"CUDA out of memory", b"\x1f\x8b", b"PK\x03\x04", b""])
def test_what_is_no_plain_pickle_is_not_read_ahead(beginning: bytes, tmp_path: Path, ahead: dict[Path, object]) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(beginning)
    assert read_ahead_of([str(path)])
    assert ahead == {}


def test_of_two_files_it_is_not_known_which_is_meant(snapshot: Path, ahead: dict[Path, object]) -> None:
    other = snapshot.with_name("other.pickle")
    other.write_bytes(snapshot.read_bytes())
    assert read_ahead_of([str(snapshot), "--html", str(other)])
    assert ahead == {}


def test_only_large_regular_files_are(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        os.truncate(file.fileno(), LARGE_BYTES)
    assert is_large(path)
    os.truncate(path, LARGE_BYTES - 1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    wrong = [path, pipe, tmp_path, tmp_path / "none", Path("/dev/zero"), Path("a\0b"), Path("x" * 5000)]
    assert not any(is_large(each) for each in wrong)


@pytest.mark.parametrize("words", [[], ["--json"], ["--device", "7"], ["--no-such-option"]])
@pytest.mark.parametrize("content", [b"\x80\x04.", b"\x80\x04]q\x00.", b"Traceback"])
def test_a_large_file_is_told_as_one_that_is_small(content: bytes, words: list[str], tmp_path: Path) -> None:
    """The same text, code and streams, though one is read ahead and its process ends without freeing."""
    path = tmp_path / "file"
    answers = []
    for n_bytes in (LARGE_BYTES, LARGE_BYTES - 1):
        path.write_bytes(content)
        os.truncate(path, n_bytes)
        command = [sys.executable, "-m", "ullage", "explain", str(path), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        answers.append((done.returncode, done.stdout, done.stderr))
    assert answers[0] == answers[1]
    assert answers[0][0] == (0 if words in ([], ["--json"]) and content[2:3] == b"]" else 2)


@pytest.mark.parametrize(("code", "status"), [("None", 0), ("0", 0), ("3", 3), ("'text'", 1)])
def test_an_end_without_freeing_has_the_code_and_all_output(code: str, status: int) -> None:
    program = (
        "import atexit; from ullage.cli.large_snapshot import end_without_freeing\n"
        "atexit.register(print, 'freed')\nprint('said')\n"
        f"try: raise SystemExit({code})\nexcept SystemExit as end: end_without_freeing(end); raise"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stdout == ("said\n" if code != "'text'" else "said\nfreed\n")


def test_where_nothing_can_be_written_python_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    end_without_freeing(SystemExit(0))
